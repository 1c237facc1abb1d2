"""A run and its children on a real API server: made, told, waited for and reported, whoever dies in between."""

from __future__ import annotations

from typing import Any

import pytest

from integration.operator.stage import SCRIPTED, Stage, answered, condition, eventually, now, park, stays
from pilothouse_api import names
from pilothouse_api.plan import Plan
from pilothouse_kubernetes.client import AGENTRUNS, CONFIGMAPS, KubernetesClient, Raw
from pilothouse_kubernetes.connection import Connection, find_credentials

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio

CALL, TASK = "t1-0-0a1b2c3d", "t2-0-0a1b2c3d"
CHILD, TASK_RUN = f"r1-{CALL}", f"r1-{TASK}"
DURABLE = {"JOURNAL_CLAIM": "journals"}


def asks(call_id: str = CALL, state: str = "Awaited", agent: str = "helper", **changes: Any) -> Raw:
    hold = {"tokens": 4096}
    return {
        "callId": call_id,
        "ref": {"kind": "Agent", "name": agent},
        "input": {"word": "hi"},
        "hold": hold,
        "state": state,
        **changes,
    }


async def begin(stage: Stage, session: str | None = None, **settings: str) -> None:
    """An operator, a workflow whose agent may delegate, and a run of it whose runner has begun."""
    await stage.operator(**settings).start()
    model = {**SCRIPTED, "maxOutputTokens": 100}
    await stage.apply_agent("helper", model=model)
    tool = {"name": "help", "description": "Helps.", "agentRef": {"name": "helper"}, "background": True}
    rule = {"name": "never", "at": "ToolCall", "cel": "tool == 'purge'", "verdict": "Deny"}
    agent = {"mode": "Autonomous", "model": model, "steering": {"inline": "Delegate."}, "prompt": None, "tools": [tool]}
    await stage.apply_agent("worker", **agent, policy=[rule])
    await stage.apply_workflow(limits={"tokenBudget": 10_000}, policy=[{**rule, "name": "never-either"}])
    await stage.apply_run(**({"session": session} if session is not None else {}))
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")


async def reports(stage: Stage) -> dict[str, Raw]:
    return {report["callId"]: report for report in (await stage.status()).get("children", ())}


async def mode_of(stage: Stage, name: str) -> str | None:
    control = (await stage.run(name))["spec"].get("control", {})
    found: str | None = control.get("mode")
    return found


async def wait_mode(stage: Stage, name: str, want: str) -> None:
    async def look() -> bool:
        return await mode_of(stage, name) == want

    await eventually(look)


async def wait_report(stage: Stage, call_id: str = CALL) -> Raw:
    """Wait for the report of an end."""

    async def look() -> Raw | None:
        report = (await reports(stage)).get(call_id)
        return report if report is not None and "exit" in report else None

    found = await eventually(look)
    assert found is not None
    return found


async def live_pods(stage: Stage, run: str) -> int:
    pods = [raw for raw in await stage.pods() if raw["metadata"]["labels"][names.LABEL_RUN] == run]
    return sum(1 for raw in pods if raw["status"].get("phase") not in ("Succeeded", "Failed"))


async def test_a_run_that_waits_for_a_child_holds_no_pod_and_its_end_wakes_it_whoever_dies(stage: Stage) -> None:
    await begin(stage, **DURABLE)
    await stage.publish(turn=1, parked=park("AwaitingChild", released=True), children=[asks()])
    await stage.end_pod("r1-1", 0)
    await stage.start_pod(f"{CHILD}-1")
    child = await stage.wait_phase("Running", CHILD)
    [owner] = child["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("AgentRun", (await stage.run())["metadata"]["uid"])
    assert child["spec"] == {"agentRef": {"name": "helper"}, "input": {"word": "hi"}}

    stage.processes[0].kill()
    await stage.processes[0].wait()
    used = {"used": 100, "input": 70, "output": 30}
    await stage.succeed(CHILD, tokens=used, cost={"usedUSD": "0.01"}, result={"found": 3})
    assert await live_pods(stage, "r1") == 0
    await stage.operator(**DURABLE).start()

    await stage.start_pod("r1-2")  # woken by the end
    report = (await reports(stage))[CALL]
    assert report["exit"] == {"signal": "default", "reason": "Complete", "message": "done"}
    assert (report["name"], report["result"]) == (CHILD, {"found": 3})
    assert (report["inputTokens"], report["outputTokens"], report["costUSD"]) == (70, 30, "0.01")
    await stage.succeed(attempt=2, children=[asks(state="Delivered", input={})])
    ended = await stage.wait_phase("Succeeded")
    assert "result" not in ended["status"]["children"][0]  # it was read

    async def counted() -> bool:
        return (await stage.workflow()).get("status", {}).get("counts", {}).get("succeeded") == 1

    await eventually(counted)
    assert [raw["metadata"]["name"] for raw in await stage.runs()] == ["r1", CHILD]


async def test_the_plan_of_a_child_holds_what_it_was_lent_and_its_ancestors_policies(stage: Stage) -> None:
    await begin(stage)
    await stage.publish(turn=1, children=[asks()])
    await stage.wait_pod(f"{CHILD}-1")
    raw = await stage.api.get(CONFIGMAPS, stage.namespace, names.plan_name(CHILD))
    plan = Plan.decode(raw["data"][names.PLAN_KEY])
    assert plan.spec.limits.token_budget == 4096
    assert plan.ancestors == ["r1"]
    assert [policy.owner for policy in plan.ancestor_policies] == ["workflow flow", "agent worker"]


async def test_pause_is_copied_down_and_taken_back_and_abort_waits_for_the_children(stage: Stage) -> None:
    await begin(stage, **DURABLE)
    children = [asks(), asks(TASK, "Background")]
    await stage.publish(turn=2, parked=park("AwaitingChild", 2), children=children)
    await stage.start_pod(f"{CHILD}-1")
    await stage.wait_phase("Running", CHILD)

    await stage.control(mode="Pause", reason="lunch")
    await wait_mode(stage, CHILD, "Pause")
    await wait_mode(stage, TASK_RUN, "Pause")
    assert (await stage.run(CHILD))["spec"]["control"]["reason"] == "copied from r1: lunch"
    await stage.control(TASK_RUN, mode="Run")  # by hand: nobody fights it
    await stays(lambda: mode_of(stage, TASK_RUN), "Run", 1.0)
    await stage.control(mode="Run")
    await wait_mode(stage, CHILD, "Run")

    await stage.control(mode="Abort", reason="wrong customer")
    await wait_mode(stage, CHILD, "Abort")
    await stage.wait_phase("Aborted", TASK_RUN)  # it had not begun
    abandoned = [{**child, "state": "Abandoned", "input": {}} for child in children]
    end = {"signal": "aborted", "reason": "Aborted", "message": "wrong customer"}
    await stage.publish(turn=2, exit=end, children=abandoned)
    await stage.end_pod("r1-1", 0)
    await stays(lambda: phase(stage), "Running", 1.0)  # a child of it still runs

    await stage.publish(CHILD, turn=1, exit=end)
    await stage.end_pod(f"{CHILD}-1", 0)
    await stage.wait_phase("Aborted")
    assert (await stage.run(CHILD))["status"]["phase"] == "Aborted"


async def phase(stage: Stage) -> str:
    found: str = (await stage.status())["phase"]
    return found


async def test_what_a_child_asks_of_a_person_stands_on_its_parent(stage: Stage) -> None:
    await begin(stage, **DURABLE)
    await stage.publish(turn=1, parked=park("AwaitingChild", released=True), children=[asks()])
    await stage.end_pod("r1-1", 0)
    await stage.start_pod(f"{CHILD}-1")
    pending = {"callId": "t1-0-99999999", "tool": "refund", "requestedAt": now()}
    await stage.publish(CHILD, turn=1, parked=park("AwaitingApproval"), pendingApprovals=[pending])
    found = condition(await stage.wait_phase("AwaitingApproval"), "AwaitingApproval")
    assert found is not None
    assert f"pilothouse approve {CHILD} t1-0-99999999" in found["message"]

    await stage.control(CHILD, approvals={"t1-0-99999999": {"decision": "Approve"}})
    await stage.publish(CHILD, turn=1, control=answered("Run", 2))
    await stage.wait_phase("Running")


async def test_what_the_plan_does_not_allow_is_no_run_and_an_end(stage: Stage) -> None:
    await begin(stage)
    calls = ["t1-0-00000000", "t2-0-00000000", "t3-0-00000000"]
    changes = ({"agent": "worker"}, {"hold": {"tokens": 20_000}}, {"input": {"word": "x" * 9000}})
    await stage.publish(turn=1, children=[asks(call, **more) for call, more in zip(calls, changes, strict=True)])
    for call in calls:
        assert (await wait_report(stage, call))["exit"]["reason"] == "ChildRefused"
    assert [raw["metadata"]["name"] for raw in await stage.runs()] == ["r1"]


async def test_a_child_that_is_deleted_by_hand_is_an_end(stage: Stage) -> None:
    await begin(stage)
    await stage.publish(turn=2, children=[asks(), asks(TASK, "Background")])
    await stage.start_pod(f"{CHILD}-1")
    await stage.wait_phase("Running", CHILD)
    await stage.api.delete(AGENTRUNS, stage.namespace, CHILD)
    assert (await wait_report(stage))["exit"]["reason"] == "ChildDeleted"
    assert "inputTokens" not in (await reports(stage))[CALL]


async def test_a_run_that_claims_a_parent_is_never_planned(stage: Stage) -> None:
    await begin(stage)
    owner = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "name": "r1", "controller": True}
    owner["uid"] = (await stage.run())["metadata"]["uid"]
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {"name": "forged", "ownerReferences": [owner], "labels": {names.LABEL_PARENT_CALL: CALL}},
        "spec": {"agentRef": {"name": "helper"}},
    }
    connection = Connection(find_credentials(str(stage.operator_kubeconfig)))  # nobody else may, by admission
    try:
        await KubernetesClient(connection).create(AGENTRUNS, stage.namespace, body)
    finally:
        await connection.close()
    found = await stage.wait_condition("Ready", "False", "NotAskedFor", "forged")
    assert "the run r1 does not ask for this child" in found["message"]


async def test_a_task_outlives_its_run_and_its_end_is_told_in_the_next_run_of_the_session(stage: Stage) -> None:
    await begin(stage, **DURABLE, session="c-17")
    await stage.publish(turn=2, children=[asks(TASK, "Background")])
    await stage.start_pod(f"{TASK_RUN}-1")
    end = {"signal": "default", "reason": "Complete", "message": ""}
    await stage.publish(turn=3, exit=end, children=[asks(TASK, "HandedOn")])
    await stage.end_pod("r1-1", 0)
    await stage.wait_phase("Succeeded")
    assert await mode_of(stage, TASK_RUN) is None

    await stage.apply_run("r2", session="c-17")
    await stage.start_pod("r2-1")
    await stage.publish("r2", turn=1, children=[asks(TASK_RUN, "Background", input={}, hold={}, owner="r1")])

    async def report() -> Raw | None:
        found = (await stage.status("r2")).get("children", ())
        return next((one for one in found if one["callId"] == TASK_RUN), None)

    assert await eventually(report) == {"callId": TASK_RUN, "name": TASK_RUN}
    await stage.publish(TASK_RUN, turn=1, exit=end, result={"found": 3})
    await stage.end_pod(f"{TASK_RUN}-1", 0)

    async def told() -> Raw | None:
        one = await report()
        return one if one is not None and "exit" in one else None

    known = await eventually(told)
    assert known is not None and (known["exit"]["reason"], known["result"]) == ("Complete", {"found": 3})
