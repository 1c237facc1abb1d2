"""Triggers, history and what workflows and agents are told about themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from integration.operator.stage import Stage, condition, eventually
from pilothouse_api import names
from pilothouse_kubernetes.client import AGENTRUNS, AGENTS, WORKFLOWS, Raw

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio

ON_CHANGE: dict[str, Any] = {"trigger": {"type": "OnChange"}}


async def one_run(stage: Stage) -> str:
    async def look() -> str | None:
        runs = await stage.runs()
        return str(runs[0]["metadata"]["name"]) if len(runs) == 1 else None

    return str(await eventually(look))


async def run_to_end(stage: Stage, name: str) -> None:
    await stage.start_pod(names.pod_name(name, 1))
    await stage.wait_phase("Running", name)
    await stage.succeed(name)
    await stage.wait_phase("Succeeded", name)


async def wait_workflow(stage: Stage, path: str, want: object) -> Raw:
    async def look() -> Raw | None:
        raw = await stage.workflow()
        value: object = raw.get("status", {})
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return raw if value == want else None

    try:
        found = await eventually(look)
    except AssertionError as error:
        raise AssertionError(
            f"{error}; wanted {path} = {want!r} of {(await stage.workflow()).get('status')}"
        ) from error
    assert found is not None
    return found


async def test_a_changed_workflow_runs_once_and_again_only_when_it_changes(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(**ON_CHANGE, runTemplate={"ttlSecondsAfterFinished": 1})
    first = await one_run(stage)
    assert first.startswith("flow-g1-")
    await run_to_end(stage, first)
    done = await wait_workflow(stage, "counts.succeeded", 1)

    async def gone() -> bool:
        return await stage.runs() == []

    await eventually(gone)
    await stage.processes[0].stop()
    await stage.processes[0].start()
    no_matter = {"spec": {"suspend": False, "history": {"succeeded": 9}, "description": "again"}}
    await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", no_matter)
    await wait_workflow(stage, "observedGeneration", 2)
    assert await stage.runs() == []
    await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", {"spec": {"maxStepVisits": 9}})

    assert (await one_run(stage)).startswith("flow-g3-")
    assert done["status"]["lastRun"]["name"] == first
    assert done["status"]["lastRun"]["phase"] == "Succeeded"


async def test_counts_survive_restart_and_deletion(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(history={"succeeded": 0})
    await stage.apply_run("a")
    await stage.apply_run("b")
    await run_to_end(stage, "a")
    await run_to_end(stage, "b")
    await wait_workflow(stage, "counts.succeeded", 2)
    await stage.processes[0].stop()
    await stage.api.delete(AGENTRUNS, stage.namespace, "a")
    await stage.processes[0].start()
    await stage.apply_run("c")

    await wait_workflow(stage, "activeRuns", 1)
    await run_to_end(stage, "c")

    await wait_workflow(stage, "counts", {"succeeded": 3, "failed": 0, "aborted": 0})
    assert {raw["metadata"]["name"] for raw in await stage.runs()} == {"b", "c"}  # only triggered ones have a history


async def test_replace_aborts_the_older_run_and_starts_the_newer_when_it_has_ended(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(**ON_CHANGE, concurrencyPolicy="Replace")
    first = await one_run(stage)
    await stage.start_pod(names.pod_name(first, 1))
    await stage.wait_phase("Running", first)

    await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", {"spec": {"maxStepVisits": 9}})

    async def aborting() -> bool:
        return bool((await stage.run(first))["spec"].get("control", {}).get("mode") == "Abort")

    await eventually(aborting)
    assert len(await stage.runs()) == 1
    await stage.publish(first, exit={"signal": "aborted", "reason": "Aborted"})
    await stage.end_pod(names.pod_name(first, 1))

    async def newer() -> bool:
        return any(raw["metadata"]["name"].startswith("flow-g2-") for raw in await stage.runs())

    await eventually(newer)
    await wait_workflow(stage, "counts.aborted", 1)


async def test_forbid_starts_the_newest_generation_when_the_older_run_has_ended(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(**ON_CHANGE, concurrencyPolicy="Forbid")
    first = await one_run(stage)
    for visits in (7, 8):
        await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", {"spec": {"maxStepVisits": visits}})
    await wait_workflow(stage, "observedGeneration", 3)
    assert [raw["metadata"]["name"] for raw in await stage.runs()] == [first]

    await run_to_end(stage, first)

    async def started() -> list[str]:
        return [raw["metadata"]["name"] for raw in await stage.runs() if raw["metadata"]["name"] != first]

    assert (await eventually(started))[0].startswith("flow-g3-")


async def test_a_slot_starts_one_run(stage: Stage) -> None:
    """The newest slot was missed by at most a minute, and is caught up once: no waiting for the next one."""
    await stage.operator().start()
    await stage.apply_agent()
    schedule = {"cron": "* * * * *", "startingDeadlineSeconds": 3600}
    created = await stage.apply_workflow(trigger={"type": "Schedule", "schedule": schedule}, suspend=True)
    status = await wait_workflow(stage, "observedGeneration", 1)
    slot = int(datetime.now(UTC).timestamp()) // 60 - 1
    # As if the operator had been away for a while.
    digest = status["status"]["lastTriggered"]["digest"]
    await stage.processes[0].stop()
    old = {"status": {"lastTriggered": {"generation": 1, "digest": digest, "slot": slot - 5}}}
    await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", old, "status")
    await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", {"spec": {"suspend": False}})
    await stage.processes[0].start()

    name = await one_run(stage)

    uid = created["metadata"]["uid"]
    assert name in {names.slot_run_name("flow", minute, uid) for minute in (slot, slot + 1, slot + 2)}

    async def scheduled() -> bool:
        return "nextScheduleTime" in (await stage.workflow())["status"]

    await eventually(scheduled)


async def test_history_keeps_the_newest(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(**ON_CHANGE, history={"succeeded": 1})
    first = await one_run(stage)
    await run_to_end(stage, first)
    await stage.api.merge_patch(WORKFLOWS, stage.namespace, "flow", {"spec": {"maxStepVisits": 9}})

    async def second() -> str | None:
        found = [raw["metadata"]["name"] for raw in await stage.runs() if raw["metadata"]["name"] != first]
        return str(found[0]) if found else None

    name = str(await eventually(second))
    await run_to_end(stage, name)

    async def only_second() -> bool:
        return [raw["metadata"]["name"] for raw in await stage.runs()] == [name]

    await eventually(only_second)
    assert (await stage.workflow())["status"]["counts"]["succeeded"] == 2


async def test_references_are_told_and_heal(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_workflow()
    await wait_condition(stage, "ReferencesResolved", "False")

    await stage.apply_agent()

    await wait_condition(stage, "ReferencesResolved", "True")
    await wait_condition(stage, "Ready", "True")

    async def used() -> bool:
        status = (await stage.api.get(AGENTS, stage.namespace, "worker")).get("status", {})
        return bool(status.get("usedBy") == 1 and status["observedGeneration"] == 1)

    await eventually(used)


async def wait_condition(stage: Stage, kind: str, status: str) -> None:
    async def look() -> bool:
        found = condition(await stage.workflow(), kind)
        return found is not None and found["status"] == status

    await eventually(look)


async def test_an_invalid_workflow_is_stalled_with_its_field(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent(outcome={"enum": ["good", "bad"]})
    await stage.apply_workflow()

    await wait_condition(stage, "Stalled", "True")

    stalled = condition(await stage.workflow(), "Stalled")
    assert stalled is not None and "routes" in stalled["message"] and "bad" in stalled["message"]
