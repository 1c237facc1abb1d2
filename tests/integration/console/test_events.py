"""Events, traces and results of runs, over HTTP and a real watch."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from integration.console.conftest import open_desk
from integration.console.office import Desk, Office, eventually
from integration.crds.kube_callers import must
from support.cluster import LocalCluster
from support.redis_server import shared_redis

pytestmark = pytest.mark.anyio


def trace(*turns: int) -> dict[str, Any]:
    frames = [{"kind": "ToolCall", "turn": turn, "time": f"2026-01-01T00:00:{turn:02}.000Z"} for turn in turns]
    return {"run": {"attempt": 1, "turn": turns[-1], "trace": frames}}


class Follower:
    """Reads the events of one run."""

    def __init__(self, desk: Desk, name: str, who: str = "reader", last_id: str | None = None) -> None:
        headers = desk.headers(who) | ({"Last-Event-ID": last_id} if last_id else {})
        self._request = desk.client.stream("GET", desk.path(name, "/events"), headers=headers)
        self.events: list[tuple[str, Any, str | None]] = []

    async def until(self, event: str, turn: int | None = None) -> None:
        async with asyncio.timeout(90), self._request as answer:
            assert answer.status_code == 200, answer
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif "event" in fields:
                    data = json.loads(fields["data"])
                    self.events.append((fields["event"], data, fields.get("id")))
                    if fields["event"] == event and turn in (None, data.get("turn")):
                        return
                    fields = {}

    @property
    def turns(self) -> list[int]:
        return [data["turn"] for event, data, _ in self.events if event == "frame"]


async def test_a_run_is_followed_to_its_end_over_a_break_without_gap_and_double(desk: Desk) -> None:
    name = desk.office.run(status=trace(1, 2))
    first = Follower(desk, name)
    await first.until("frame", 2)
    desk.office.report(name, trace(1, 2, 3, 4))
    last_id = next(event_id for event, _, event_id in reversed(first.events) if event == "frame")
    second = Follower(desk, name, last_id=last_id)
    following = asyncio.create_task(second.until("end"))
    await eventually(lambda: 4 in second.turns)
    desk.office.report(name, trace(3, 4, 5))
    desk.office.end(name)
    await following
    assert (first.turns, second.turns) == ([1, 2], [3, 4, 5])
    assert [data["phase"] for event, data, _ in second.events if event == "run"][-1] == "Succeeded"
    end = second.events[-1][2]
    answer = await desk.get("reader", desk.path(name, "/events"))
    assert answer.text.count("event: end") == 1
    headers = {**desk.headers("reader"), "Last-Event-ID": str(end)}
    assert (await desk.client.get(desk.path(name, "/events"), headers=headers)).status_code == 204


async def test_who_may_not_look_any_more_is_let_out(office: Office, control_plane: LocalCluster) -> None:
    async with open_desk(office, control_plane, heartbeat_seconds=0.2) as desk:
        account = {"metadata": {"name": "leaving"}}
        folder = f"/api/v1/namespaces/{office.namespace}/serviceaccounts"
        must(office.admin.call("POST", folder, account))
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
        subject = {"kind": "ServiceAccount", "name": "leaving", "namespace": office.namespace}
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{office.namespace}/rolebindings"
        binding = {"metadata": {"name": "leaving"}, "roleRef": reference, "subjects": [subject]}
        must(office.admin.call("POST", bindings, binding))
        token = must(office.admin.call("POST", f"{folder}/leaving/token", {"spec": {}}))["status"]["token"]
        office.tokens["leaving"] = token
        name = office.run()
        follower = Follower(desk, name, "leaving")
        following = asyncio.create_task(follower.until("end"))
        await eventually(lambda: follower.events)
        must(office.admin.call("DELETE", f"{folder}/leaving"))
        await following
        assert "end" not in [event for event, _, _ in follower.events]
        await eventually(lambda: desk.host.services.metrics.streams_ended.labels("Revoked")._value.get() == 1)


async def test_what_happened_is_shown_with_what_supervision_did(desk: Desk) -> None:
    action = {
        "id": "x",
        "time": "2026-01-01T00:00:01.5Z",
        "supervisor": "s",
        "action": "Pause",
        "source": "Rule/r",
        "reason": "it goes round",
        "turn": 1,
    }
    name = desk.office.run(status={**trace(1, 2), "supervision": {"actions": [action]}})
    answer = await desk.get("reader", desk.path(name, "/trace"))
    assert [(item["source"], item["kind"]) for item in answer.json()["items"]] == [
        ("Runner", "ToolCall"),
        ("Supervision", "Pause"),
        ("Runner", "ToolCall"),
    ]
    assert answer.json()["origin"] == "Status"


async def test_a_result_is_shown_and_one_that_cannot_be_had_is_said_why(
    office: Office, control_plane: LocalCluster
) -> None:
    reference = {"ref": "journal/result", "bytes": 9000, "digest": "0" * 64}
    small = office.run(status={"result": {"answer": 42}})
    large = office.run(status={"result": reference})
    none = office.run()

    async def asked(desk: Desk, name: str, result_id: str = "result") -> httpx.Response:
        return await desk.get("reader", desk.path(name, f"/results/{result_id}"))

    async with open_desk(office, control_plane) as desk:
        answer = await asked(desk, small)
        assert (answer.status_code, answer.json()["result"]) == (200, {"answer": 42})
        assert (await asked(desk, small, "other")).status_code == 404
        assert (await asked(desk, none)).status_code == 404
        assert "not in a Redis" in (await asked(desk, large)).json()["detail"]
    async with open_desk(office, control_plane, redis_url=shared_redis().url) as desk:
        assert (await asked(desk, large)).status_code == 410
    async with open_desk(office, control_plane, redis_url="unix:///nowhere/s") as desk:
        assert (await asked(desk, large)).status_code == 503


async def test_who_has_as_many_streams_open_as_one_user_may_is_told_so(
    office: Office, control_plane: LocalCluster
) -> None:
    async with open_desk(office, control_plane, most_streams_per_user=1) as desk:
        name = office.run(status=trace(1))
        follower, other = Follower(desk, name), Follower(desk, name, "patcher")
        following = asyncio.create_task(follower.until("end"))
        await eventually(lambda: follower.events)
        refused = await desk.get("reader", desk.path(name, "/events"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
        assert "reader has 1 event streams open here" in refused.json()["detail"]
        await other.until("frame", 1)
        office.end(name)
        await following
