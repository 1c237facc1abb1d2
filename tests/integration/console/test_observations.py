"""A replay over a run of a cluster: the runner's looks by the operator API, the plan by the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.console.conftest import open_desk
from integration.console.office import Office
from integration.crds.kube_callers import must
from pilothouse_api.digests import text_digest
from pilothouse_api.names import redis_run_prefix
from pilothouse_api.plan import Plan
from pilothouse_cli.cluster.recordings import record_in_cluster
from pilothouse_cli.cluster.runs import ClusterRuns
from pilothouse_cli.exits import CliError
from support.cluster import LocalCluster
from support.redis_server import RedisServer
from support.runner_process import napping_plan

pytestmark = pytest.mark.anyio


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.close()


def a_look(turn: int, **tool_calls: int) -> str:
    counts = {"toolCalls": tool_calls}
    run = {"attempt": 1, "journalLength": 10 * turn, "step": "talk", "visit": 1, "turn": turn, "visitCounts": counts}
    return json.dumps({"now": "2026-01-01T00:00:00.000Z", "run": run})


def make_run(office: Office) -> tuple[str, str]:
    """Make a run with its plan; return its name and uid."""
    name = office.run()
    uid = office.read(name)["metadata"]["uid"]
    identity = {"namespace": office.namespace, "name": name, "uid": uid}
    plan = Plan.model_validate({"run": identity, "workflow": {"name": "w", "digest": "0"}, **napping_plan(2, 0)})
    text, plan_name = plan.encode(), f"{name}-plan"
    body = {"metadata": {"name": plan_name}, "data": {"plan.json": text}}
    must(office.admin.call("POST", f"/api/v1/namespaces/{office.namespace}/configmaps", body))
    office.report(name, {"plan": {"name": plan_name, "digest": text_digest(text)}})
    return name, uid


async def test_a_run_of_a_cluster_is_replayed_by_what_its_runner_has_kept(
    office: Office, control_plane: LocalCluster, redis: RedisServer, anyio_backend: str
) -> None:
    name, uid = make_run(office)
    key = f"{redis_run_prefix(office.namespace, uid)}looks"
    for look in (a_look(1, note=1), a_look(3, note=3), a_look(2, note=2, made_up=4)):
        redis.ask("XADD", key, "*", "look", look)
    async with open_desk(office, control_plane, redis_url=redis.url) as desk:
        runs = ClusterRuns.connect(office.namespace, kubeconfig=control_plane.kubeconfig)
        runs.api_client.configuration.api_key["authorization"] = f"Bearer {control_plane.token}"
        api = f"http://127.0.0.1:{desk.host.port}"
        recording = await asyncio.to_thread(record_in_cluster, runs, name, api)
        with pytest.raises(CliError, match="there is no run"):
            await asyncio.to_thread(record_in_cluster, runs, "gone", api)
        statuses: dict[str, Any] = {}
        for who in ("nobody", "reader"):
            statuses[who] = (await desk.get(who, desk.path(name, "/observations"))).status_code
    assert recording.run == f"{office.namespace}/{name}"
    seen = [(it.turn, it.tool_calls, it.undeclared_tool_calls) for it in recording.observations]
    assert seen == [(1, {"note": 1}, 0), (2, {"note": 2}, 4)]
    assert statuses == {"nobody": 404, "reader": 200}
