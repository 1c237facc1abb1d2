"""Each call under each right: who may what, what is refused and how, and what stands in the run afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.console.office import Desk, eventually
from pilothouse_console.picture import RunKey

pytestmark = pytest.mark.anyio

STEER = {"message": "look at invoice 42"}
BODIES: dict[str, Any] = {
    "/pause": None,
    "/resume": None,
    "/finish": {"reason": "enough"},
    "/abort": {},
    "/steer": STEER,
    "/approve": {"callId": "t1"},
    "/limits": {"maxIterations": 5},
}
DECIDED = ("/approve", "/limits")


async def test_without_a_valid_token_nothing_is_answered(desk: Desk) -> None:
    name = desk.office.run()
    for path in ("/api/agents/runs", desk.path(name), "/api/nothing"):
        answer = await desk.get("stranger", path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        answer = await desk.client.get(path, headers={"Authorization": "Bearer nonsense"})
        assert (answer.status_code, answer.json()["detail"]) == (401, "this token is not valid, or no longer")
    answer = await desk.post("stranger", desk.path(name, "/pause"), "{not json")
    assert answer.status_code == 401


async def test_what_one_may_not_see_is_not_there(desk: Desk) -> None:
    hidden = desk.office.run(desk.office.elsewhere)
    there = desk.path(hidden, namespace=desk.office.elsewhere)
    missing = desk.path("no-such-run", namespace=desk.office.elsewhere)
    for who in ("nobody", "reader", "patcher", "decider"):
        for rest in ("", *BODIES):
            call = desk.get if not rest else desk.post
            bodies = () if not rest else (BODIES[rest],)
            is_there = await call(who, there + rest, *bodies)
            is_missing = await call(who, missing + rest, *bodies)
            assert is_there.status_code == is_missing.status_code == 404
            assert is_there.text.replace(hidden, "no-such-run") == is_missing.text
    assert desk.office.read(hidden, desk.office.elsewhere)["spec"] == {"workflowRef": {"name": "triage"}}


async def test_who_may_see_and_not_steer_is_refused(desk: Desk) -> None:
    name = desk.office.run(status={"run": _waiting("t1")})
    seen = await desk.get("reader", desk.path(name))
    assert seen.json()["may"] == {"steer": False, "approve": False, "limit": False}
    for rest, body in BODIES.items():
        answer = await desk.post("reader", desk.path(name, rest), body)
        assert (answer.status_code, answer.json()["title"]) == (403, "Not allowed"), rest
    for rest in DECIDED:
        answer = await desk.post("patcher", desk.path(name, rest), BODIES[rest])
        assert answer.status_code == 403, rest
    for rest, body in BODIES.items():
        answer = await desk.post("runner", desk.path(name, rest), body)
        assert (answer.status_code, "account of a runner" in answer.text) == (403, True), rest
    assert desk.office.control(name) == {}
    assert "limits" not in desk.office.read(name)["spec"]


async def test_who_may_steer_steers_and_signs(desk: Desk) -> None:
    name = desk.office.run(status={"run": _waiting("t1")})
    user = f"system:serviceaccount:{desk.office.namespace}:decider"
    for rest in ("/pause", "/steer", "/approve", "/limits"):
        answer = await desk.post("decider", desk.path(name, rest), BODIES[rest])
        assert (answer.status_code, answer.json()["by"]) == (202, user), answer.text
    control = desk.office.control(name)
    (steer,) = control["steer"].values()
    assert (control["mode"], control["by"]) == ("Pause", user)
    assert steer == {**STEER, "by": user}
    assert control["approvals"] == {"t1": {"decision": "Approve", "by": user}}
    assert desk.office.read(name)["spec"]["limits"] == {"maxIterations": 5}


async def test_the_name_of_who_paused_goes_when_somebody_else_goes_on(desk: Desk) -> None:
    name = desk.office.run()
    await desk.post("decider", desk.path(name, "/pause"), {"reason": "lunch"})
    await desk.post("patcher", desk.path(name, "/resume"))
    user = f"system:serviceaccount:{desk.office.namespace}:patcher"
    assert desk.office.control(name) == {"mode": "Run", "by": user}


REFUSED: list[tuple[str, Any, int]] = [
    ("/steer", None, 422),
    ("/steer", {}, 422),
    ("/steer", {"message": ""}, 422),
    ("/steer", {"message": " \n"}, 400),
    ("/steer", {"message": "x" * 4097}, 422),
    ("/steer", {"message": "x", "by": "somebody else"}, 422),
    ("/steer", {"message": "x", "id": "sup-000001-a-b"}, 422),
    ("/steer", {"message": "x", "id": "a/b"}, 422),
    ("/pause", {"mode": "Run"}, 422),
    ("/pause", [], 422),
    ("/limits", {}, 422),
    ("/limits", {"maxIterations": 0}, 422),
    ("/limits", {"maxLoops": 3}, 422),
    ("/approve", {"callId": "t1", "arguments": {"to": {"name": None}}}, 422),
    ("/approve", {"callId": "t2"}, 409),
    ("/pause?wait=61", None, 422),
    ("/pause?wait=nan", None, 422),
    ("/pause?now=1", None, 422),
    ("/dance", None, 404),
]


async def test_what_is_wrong_is_refused_and_writes_nothing(desk: Desk) -> None:
    name = desk.office.run(status={"run": _waiting("t1")})
    before = desk.office.read(name)
    for rest, body, want in REFUSED:
        answer = await desk.post("decider", desk.path(name, rest), body)
        assert answer.status_code == want, (rest, body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "next"} <= answer.json().keys()
    assert desk.office.read(name)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_body_that_is_too_large_or_no_json_is_refused(desk: Desk) -> None:
    name = desk.office.run()
    large = await desk.post("patcher", desk.path(name, "/steer"), {"message": "x" * 200_000})
    assert large.status_code == 413
    path = desk.path(name, "/steer")
    answer = await desk.client.post(path, content=b'{"message": ', headers=desk.headers("patcher"))
    assert answer.status_code == 422
    for content in (b"[" * 100_000, b'{"\\ud800": 1}', b'{"message": "\\ud800"}', b"\xff"):
        answer = await desk.client.post(path, content=content, headers=desk.headers("patcher"))
        assert answer.status_code in (400, 422), content[:20]


async def test_an_ended_run_takes_nothing(desk: Desk) -> None:
    name = desk.office.run(status={"run": _waiting("t1")})
    desk.office.end(name)
    before = desk.office.read(name)
    for rest, body in BODIES.items():
        answer = await desk.post("decider", desk.path(name, rest), body)
        assert (answer.status_code, answer.json()["accepted"]) == (409, False), rest
    assert desk.office.read(name) == before


async def test_what_was_finished_or_aborted_is_not_paused(desk: Desk) -> None:
    name = desk.office.run()
    assert (await desk.post("patcher", desk.path(name, "/finish"))).status_code == 202
    assert (await desk.post("patcher", desk.path(name, "/pause"))).status_code == 409
    assert (await desk.post("patcher", desk.path(name, "/abort"))).status_code == 202
    answer = await desk.post("patcher", desk.path(name, "/finish"))
    assert (answer.status_code, answer.json()["accepted"]) == (409, False)
    assert desk.office.control(name)["mode"] == "Abort"


async def test_a_message_is_delivered_once_under_its_id(desk: Desk) -> None:
    name = desk.office.run()
    body = {"message": "look", "id": "mine"}
    first = await desk.post("patcher", desk.path(name, "/steer"), body)
    again = await desk.post("patcher", desk.path(name, "/steer"), body)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"] == "mine"
    assert first.json()["generation"] == again.json()["generation"]
    other = await desk.post("patcher", desk.path(name, "/steer"), {"message": "look there", "id": "mine"})
    assert other.status_code == 409


async def test_a_decision_that_changed_nothing_can_be_given_anew(desk: Desk) -> None:
    name = desk.office.run(status={"run": _waiting("t1")})
    body = {"callId": "t1", "arguments": {"amount": "many", "note": None}}
    assert (await desk.post("decider", desk.path(name, "/approve"), body)).status_code == 202
    given = desk.office.control(name)["approvals"]["t1"]
    assert (given["arguments"], given["remove"]) == ({"amount": "many"}, ["note"])
    assert (await desk.post("decider", desk.path(name, "/approve"), {"callId": "t1"})).status_code == 409
    refused = {"approvals": {"t1": {"state": "NotLanded", "turn": 1, "message": "amount is no number"}}}
    desk.office.report(name, {"run": {**_waiting("t1"), "control": refused}})
    assert (await desk.post("decider", desk.path(name, "/approve"), {"callId": "t1"})).status_code == 202
    assert desk.office.control(name)["approvals"]["t1"].keys() == {"decision", "by"}


async def test_a_directive_is_waited_for_until_it_has_landed(desk: Desk) -> None:
    name = desk.office.run()
    asked = asyncio.create_task(desk.post("patcher", desk.path(name, "/pause?wait=30")))
    await eventually(lambda: "mode" in desk.office.control(name))
    generation = desk.office.read(name)["metadata"]["generation"]
    landed = {"observedGeneration": generation, "mode": {"value": "Pause", "turn": 4}}
    desk.office.report(name, {"run": {"attempt": 1, "turn": 4, "control": landed}})
    answer = await asked
    assert answer.status_code == 200
    assert answer.json()["landing"] == {"state": "Landed", "turn": 4}
    assert answer.json()["id"] == f"pause-{generation}"

    late = await desk.post("patcher", desk.path(name, "/steer?wait=0.05"), STEER)
    assert (late.status_code, late.json()["landing"]["state"]) == (202, "Waiting")


async def test_a_list_shows_what_one_may_list(desk: Desk) -> None:
    mine = {desk.office.run() for _ in range(3)}
    hidden = desk.office.run(desk.office.elsewhere)
    await _told(desk, hidden, desk.office.elsewhere)
    everything = await desk.get("reader", "/api/agents/runs")
    names = {item["name"] for item in everything.json()["items"]}
    assert mine <= names
    assert hidden not in names
    assert {item["namespace"] for item in everything.json()["items"]} == {desk.office.namespace}
    assert everything.json()["isLive"] is True
    assert (await desk.get("nobody", "/api/agents/runs")).json()["items"] == []
    for namespace in (desk.office.elsewhere, "no-such-namespace", "../x", "X"):
        answer = await desk.get("reader", "/api/agents/runs", params={"namespace": namespace})
        assert answer.status_code == 404, namespace


async def test_a_list_goes_on_where_a_page_ended(desk: Desk) -> None:
    mine = {desk.office.run() for _ in range(5)}
    for name in mine:
        await _told(desk, name)
    query: dict[str, Any] = {"namespace": desk.office.namespace, "limit": 2}
    seen: list[str] = []
    while True:
        page = (await desk.get("reader", "/api/agents/runs", params=query)).json()
        seen += [item["name"] for item in page["items"]]
        if "nextToken" not in page:
            break
        query["continue"] = page["nextToken"]
    assert len(seen) == len(set(seen))
    assert mine <= set(seen)
    for token in ("x", "e30", "W10", "WzEsMiwzXQ"):
        answer = await desk.get("reader", "/api/agents/runs", params={"continue": token})
        assert answer.status_code == 400, token
    assert (await desk.get("reader", "/api/agents/runs", params={"limit": 501})).status_code == 422
    assert (await desk.get("reader", "/api/agents/runs", params={"selector": "a"})).status_code == 422


async def test_a_list_is_filtered(desk: Desk) -> None:
    paused = desk.office.run(status={"phase": "Paused"})
    other = desk.office.run(workflowRef={"name": "other"})
    await _told(desk, other)

    async def names(**query: str) -> set[str]:
        answer = await desk.get("reader", "/api/agents/runs", params=query)
        return {item["name"] for item in answer.json()["items"]}

    assert paused in await names(phase="Paused")
    assert other not in await names(phase="Paused")
    assert await names(workflow="other") == {other}


async def test_a_run_that_was_just_made_is_shown(desk: Desk) -> None:
    name = desk.office.run()
    answer = await desk.get("patcher", desk.path(name))
    assert answer.status_code == 200
    body = answer.json()
    assert (body["summary"]["name"], body["summary"]["turn"]) == (name, 1)
    assert body["may"] == {"steer": True, "approve": False, "limit": False}
    assert "managedFields" not in body["object"]["metadata"]
    assert answer.headers["cache-control"] == "no-store"


async def test_a_run_that_is_nested_deeper_than_python_reads_silences_nobody(desk: Desk) -> None:
    deep: Any = 1
    for _ in range(3000):
        deep = {"a": deep}
    frame = {"kind": "ToolCall", "turn": 1, "time": "2026-01-01T00:00:01Z", "detail": deep}
    name = desk.office.run(input=deep, status={"run": {"attempt": 1, "turn": 1, "trace": [frame]}})
    await _told(desk, name)
    other = desk.office.run()
    await _told(desk, other)
    answer = await desk.get("reader", "/api/agents/runs")
    assert {name, other} <= {item["name"] for item in answer.json()["items"]}
    assert (await desk.get("reader", desk.path(name))).json()["object"]["spec"]["input"] == deep
    assert (await desk.get("reader", desk.path(name, "/trace"))).json()["items"][0]["detail"] == frame


def _waiting(call_id: str) -> dict[str, Any]:
    pending = {"callId": call_id, "tool": "refund", "requestedAt": "2026-01-01T00:00:00Z"}
    return {"attempt": 1, "turn": 1, "pendingApprovals": [pending]}


async def _told(desk: Desk, name: str, namespace: str | None = None) -> None:
    """Return once the watch has told of a run."""
    key = RunKey(namespace or desk.office.namespace, name)
    await eventually(lambda: desk.host.services.picture.get(key))
