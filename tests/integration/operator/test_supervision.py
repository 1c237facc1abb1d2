"""Supervision on a real API server: who dies, who comes between, who changes meanwhile, and what it costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from integration.operator.fault_proxy import Fault, FaultProxy, Match, fault_proxy
from integration.operator.stage import OperatorProcess, Stage, answered, condition, eventually, now, park, stays
from integration.operator.supervised import (
    JudgeService,
    actions,
    ago,
    alarming,
    apply_crew,
    apply_run,
    apply_supervisor,
    change_supervisor,
    interventions,
    judge_service,
    judge_settings,
    judging,
    publish_barrier,
    quiet,
    record,
    rule,
    settled,
    supervisor,
    wait_run,
)
from pilothouse_api import names
from pilothouse_kubernetes.client import AGENTRUNS, CONFIGMAPS, SUPERVISORS, Raw
from pilothouse_kubernetes.connection import find_credentials

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio

SHORT_LEASE = {"LEASE_SECONDS": "5", "RENEW_SECONDS": "4", "RETRY_SECONDS": "0.5"}
"""For operators that are killed: the next one waits until the Lease runs out."""
ALL: Raw = {"selector": {}}


async def begin(stage: Stage, *supervisors: tuple[str, Raw], **settings: str) -> OperatorProcess:
    """An operator, supervisors of every run, and a run whose runner has begun."""
    operator = await stage.operator(JOURNAL_CLAIM="journals", **settings).start()
    for name, spec in supervisors:
        await apply_supervisor(stage, name, **ALL, **spec)
    await apply_crew(stage)
    await apply_run(stage)
    await stage.start_pod("r1-1")
    await stage.publish(**quiet())
    await stage.wait_phase("Running")
    return operator


def rules(*made: Raw, **spec: Any) -> Raw:
    return {"rules": list(made), **spec}


PAUSES = rules(rule("ToolRepeated", "Pause"))


def states(raw: Raw) -> list[str]:
    return [one.get("state", "Intended") for one in actions(raw)]


async def wait_actions(stage: Stage, name: str, **want: int) -> Raw:
    """Wait for the counters of a Supervisor."""

    async def look() -> Raw | None:
        status: Raw = (await supervisor(stage, name)).get("status", {})
        found = status.get("actions", {})
        return status if all(found.get(action) == count for action, count in want.items()) else None

    try:
        found = await eventually(look)
    except AssertionError as error:
        raise AssertionError(f"{error}; {await supervisor(stage, name)}") from error
    assert found is not None
    return found


async def wait_interventions(stage: Stage, *want: str) -> None:
    """Wait until a run has exactly these Events of supervision: they are posted in the background."""

    async def look() -> bool:
        return sorted(event["reason"] for event in await interventions(stage)) == sorted(want)

    await eventually(look)


# ---------------------------------------------------------------- an operator that dies


@asynccontextmanager
async def proxied(stage: Stage) -> AsyncIterator[FaultProxy]:
    """Have the operators of a stage speak to the API server through a proxy."""
    async with fault_proxy(find_credentials(str(stage.operator_kubeconfig))) as made:
        config = yaml.safe_load(stage.operator_kubeconfig.read_text())
        config["clusters"] = [{"name": entry["name"], "cluster": {"server": made.url}} for entry in config["clusters"]]
        path = stage.folder / "proxied.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        stage.operator_kubeconfig = path
        try:
            yield made
        finally:
            made.heal()
            for process in stage.processes:
                await process.stop()


def directives(request: web.Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/agentruns/r1")


def reports_after_a_directive() -> Match:
    """Writes of status, from the first directive on."""
    seen: list[str] = []

    def match(request: web.Request) -> bool:
        if directives(request):
            seen.append(request.path)
        return bool(seen) and request.method == "PATCH" and request.path.endswith("/agentruns/r1/status")

    return match


async def restart(operator: OperatorProcess, proxy: FaultProxy) -> None:
    """Kill an operator where the proxy holds it, and let the next one go on."""

    async def held() -> bool:
        return bool(proxy.hits)

    await eventually(held)
    operator.kill()
    await operator.wait()
    proxy.heal()
    await operator.start()


async def test_an_operator_that_dies_between_intent_and_directive_goes_on_once(stage: Stage) -> None:
    async with proxied(stage) as proxy:
        operator = await begin(stage, ("careful", PAUSES), **SHORT_LEASE)
        proxy.inject("Fail", directives)
        await stage.publish(**alarming())
        await restart(operator, proxy)
        raw = await wait_run(stage, settled())

        assert raw["spec"]["control"]["mode"] == "Pause"
        assert states(raw) == ["Done"]
        (manager,) = {one["manager"] for one in raw["metadata"]["managedFields"] if "f:spec" in one["fieldsV1"]} - {
            "Python",
            "python",
            "pilothouse-operator",
        }
        assert manager == names.FIELD_MANAGER_SUPERVISION
        await wait_actions(stage, "careful", pause=1)
        await wait_interventions(stage, "SupervisorPaused")


@pytest.mark.parametrize(
    ("resumed", "want", "told", "count"),
    [(False, "Done", "SupervisorPaused", 1), (True, "Superseded", "SupervisorSuperseded", 0)],
    ids=["nobody came between", "a person resumed"],
)
async def test_an_operator_that_dies_between_directive_and_done_does_not_pause_again(
    stage: Stage, resumed: bool, want: str, told: str, count: int
) -> None:
    async with proxied(stage) as proxy:
        operator = await begin(stage, ("careful", PAUSES), **SHORT_LEASE)
        proxy.inject("Fail", reports_after_a_directive())
        await stage.publish(**alarming())
        await wait_run(stage, lambda raw: raw["spec"].get("control", {}).get("mode") == "Pause")
        # A first landing makes the operator report: what it had put off until then is held with it.
        await stage.publish(**alarming(4, parked=park("Paused", 4), control=answered("Pause", 2, 4)))
        await eventually(lambda: _hit(proxy))
        operator.kill()
        await operator.wait()
        if resumed:
            await stage.control(mode="Run")
            await stage.publish(**alarming(4, control=answered("Run", 3, 4)))
        proxy.heal()
        await operator.start()
        raw = await wait_run(stage, settled())

        assert states(raw) == [want]
        assert raw["spec"]["control"]["mode"] == ("Run" if resumed else "Pause")
        status = await wait_actions(stage, "careful", pause=count)
        assert ("lastAction" in status) == (not resumed)

        async def one_event() -> bool:
            return told in [event["reason"] for event in await interventions(stage)]

        await eventually(one_event)


async def _hit(proxy: FaultProxy) -> bool:
    return bool(proxy.hits)


@pytest.mark.parametrize("fault", ["Lose", "Reset"])
async def test_a_directive_whose_answer_is_lost_is_given_once(stage: Stage, fault: Fault) -> None:
    async with proxied(stage) as proxy:
        await begin(stage, ("careful", rules(rule("ToolRepeated", "Steer"))))
        proxy.inject(fault, directives)
        await stage.publish(**alarming())
        await eventually(lambda: _hit(proxy))
        proxy.heal()
        raw = await wait_run(stage, settled())

        assert states(raw) == ["Done"]
        assert list(raw["spec"]["control"]["steer"]) == [actions(raw)[0]["id"]]
        await wait_interventions(stage, "SupervisorSteered")


# ---------------------------------------------------------------- people


async def test_a_person_who_resumes_is_not_paused_again_by_the_same_finding(stage: Stage) -> None:
    operator = await begin(stage, ("careful", PAUSES))
    await stage.publish(**alarming())
    await wait_run(stage, settled())
    await stage.publish(**alarming(4, parked=park("Paused", 4), control=answered("Pause", 2, 4)))
    await stage.wait_phase("Paused")
    await stage.control(mode="Run", reason=None)
    await stage.publish(**alarming(5, control=answered("Run", 3, 5)))
    await stage.wait_phase("Running")
    await operator.stop()
    await operator.start()
    await stage.publish(**alarming(6, control=answered("Run", 3, 5)))

    async def mode() -> str:
        found: str = (await stage.run())["spec"]["control"]["mode"]
        return found

    await stays(mode, "Run", 1.5)
    raw = await stage.run()
    assert states(raw) == ["Done"]
    assert actions(raw)[0]["landedTurn"] == 4
    await wait_interventions(stage, "SupervisorPaused")


async def test_of_two_supervisors_the_more_severe_wins_and_a_steer_goes_beside_a_pause(stage: Stage) -> None:
    await begin(
        stage,
        ("gentle", rules(rule("ToolRepeated", "Steer"), steerMessage="Slower.")),
        ("careful", PAUSES),
    )
    await stage.publish(**alarming())
    raw = await wait_run(stage, settled(2))
    control = raw["spec"]["control"]
    assert control["mode"] == "Pause" and [one["message"] for one in control["steer"].values()] == ["Slower."]
    assert {one["supervisor"]: one["state"] for one in actions(raw)} == {"gentle": "Done", "careful": "Done"}

    await apply_supervisor(stage, "strict", **ALL, **rules(rule("BudgetFraction", "Abort")))
    await apply_supervisor(stage, "mild", **ALL, **rules(rule("BudgetFraction", "Steer"), steerMessage="Hm."))
    await stage.publish(**alarming(4))
    raw = await wait_run(stage, settled(4))
    control = raw["spec"]["control"]
    assert control["mode"] == "Abort" and "strict" in control["reason"]
    assert {one["supervisor"]: one["state"] for one in actions(raw)[2:]} == {"strict": "Done", "mild": "Dropped"}
    await wait_interventions(stage, "SupervisorAborted", "SupervisorPaused", "SupervisorSteered")


# ---------------------------------------------------------------- supervisors that come, change and go


async def test_a_supervisor_that_is_changed_counts_from_the_next_turn_and_one_that_is_deleted_stays(
    stage: Stage,
) -> None:
    await begin(
        stage, ("careful", rules(rule("IterationReached", "Pause", "never") | {"iterationReached": {"count": 900}}))
    )
    raw = await wait_run(stage, record)
    assert [one["generation"] for one in record(raw)["supervisors"].values()] == [1]

    await change_supervisor(stage, "careful", rules=[rule("ToolRepeated", "Steer")])
    await wait_run(stage, lambda raw: [one["generation"] for one in record(raw)["supervisors"].values()] == [2])
    await stage.publish(**alarming())
    raw = await wait_run(stage, settled())
    assert actions(raw)[0]["generation"] == 2

    await stage.api.delete(SUPERVISORS, stage.namespace, "careful")
    raw = await wait_run(stage, lambda raw: all(one.get("isDeleted") for one in record(raw)["supervisors"].values()))
    told = condition(raw, "Supervised")
    assert told is not None and told["status"] == "True"
    await stage.publish(**alarming(5, visit=2))
    raw = await wait_run(stage, settled(2))
    assert [(one["visit"], one["generation"], one["state"]) for one in actions(raw)] == [(1, 2, "Done"), (2, 2, "Done")]


async def test_a_supervisor_that_is_made_anew_takes_its_place_though_nothing_happens_in_the_run(stage: Stage) -> None:
    await stage.operator().start()
    await apply_supervisor(stage, "careful", **PAUSES)
    await apply_crew(stage, supervisorRefs=[{"name": "careful"}])
    await apply_run(stage)
    await stage.start_pod("r1-1")
    await stage.publish(**quiet())
    await wait_run(stage, record)
    await stage.api.delete(SUPERVISORS, stage.namespace, "careful")
    await wait_run(stage, lambda raw: all(one.get("isDeleted") for one in record(raw)["supervisors"].values()))
    uid = (await apply_supervisor(stage, "careful", **PAUSES))["metadata"]["uid"]
    await wait_run(stage, lambda raw: list(record(raw)["supervisors"]) == [uid])


async def test_a_supervisor_that_comes_later_watches_a_live_run_for_the_rest_of_its_life(stage: Stage) -> None:
    await begin(stage)
    assert record(await stage.run()) == {}

    await apply_supervisor(stage, "late", selector={"matchLabels": {"team": "payments"}}, **PAUSES)
    await stage.api.merge_patch(AGENTRUNS, stage.namespace, "r1", {"metadata": {"labels": {"team": "payments"}}})
    await wait_run(stage, record)
    await stage.api.merge_patch(AGENTRUNS, stage.namespace, "r1", {"metadata": {"labels": {"team": None}}})
    await stage.publish(**alarming())
    raw = await wait_run(stage, settled())

    assert actions(raw)[0]["supervisor"] == "late"
    await wait_actions(stage, "late", pause=1)


async def test_a_supervisor_that_is_not_there_keeps_a_run_from_starting_until_it_is(stage: Stage) -> None:
    await stage.operator().start()
    await apply_crew(stage, supervisorRefs=[{"name": "careful"}])
    await apply_run(stage)
    waiting = await stage.wait_condition("Reconciling", reason="SupervisorNotFound")
    assert "there is no Supervisor careful" in waiting["message"]
    assert (await stage.status())["phase"] == "Pending"
    assert await stage.pods() == []

    await apply_supervisor(stage, "careful", **PAUSES)
    await stage.start_pod("r1-1")
    raw = await wait_run(stage, record)
    assert [one["name"] for one in record(raw)["supervisors"].values()] == ["careful"]


async def test_a_child_is_watched_by_the_supervisors_of_its_parent(stage: Stage) -> None:
    await stage.operator(JOURNAL_CLAIM="journals").start()
    await apply_supervisor(stage, "careful", selector={"matchLabels": {"watched": "yes"}}, **PAUSES)
    await apply_crew(stage)
    await apply_run(stage, labels={"watched": "yes"})
    await stage.start_pod("r1-1")
    call = "t1-0-0a1b2c3d"
    asked = {"callId": call, "ref": {"kind": "Agent", "name": "helper"}, "input": {"word": "hi"}, "state": "Awaited"}
    await stage.publish(**quiet(parked=park("AwaitingChild"), children=[asked]))
    child = f"r1-{call}"
    await stage.wait_pod(f"{child}-1")
    await stage.api.merge_patch(AGENTRUNS, stage.namespace, child, {"metadata": {"labels": {"watched": None}}})
    raw = await wait_run(stage, record, child)

    assert [one["name"] for one in record(raw)["supervisors"].values()] == ["careful"]
    status = await eventually(lambda: _watched(stage, "careful", 2))
    assert status is not None


async def _watched(stage: Stage, name: str, count: int) -> Raw | None:
    status: Raw = (await supervisor(stage, name)).get("status", {})
    return status if status.get("watchedRuns") == count else None


# ---------------------------------------------------------------- what a Supervisor says about itself


async def test_a_supervisor_says_whether_it_and_its_judge_are_ready(stage: Stage, tmp_path: Path) -> None:
    async with judge_service() as judge:
        operator = stage.operator()
        await operator.start()
        criteria = {"configMapKeyRef": {"name": "policy", "key": "text"}}
        await apply_supervisor(stage, "careful", **PAUSES, judge={"model": "small", "criteria": criteria})
        await wait_supervisor(stage, "careful", Ready="False", Reconciling="True", JudgeReady="False")
        await operator.stop()

        await stage.operator(**judge_settings(judge, tmp_path)).start()
        text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policy"}, "data": {"text": "Be good."}}
        await stage.api.create(CONFIGMAPS, stage.namespace, text)
        await change_supervisor(stage, "careful", onViolation="Steer")
        found = await wait_supervisor(stage, "careful", Ready="True", Stalled="False", JudgeReady="True")
        assert found["status"]["observedGeneration"] == 2

        await change_supervisor(stage, "careful", judge={"model": "other"})
        found = await wait_supervisor(stage, "careful", Ready="False", JudgeReady="False")
        missing = condition(found, "JudgeReady")
        assert missing is not None and missing["reason"] == "ModelNotFound" and "small" in missing["message"]


async def wait_supervisor(stage: Stage, name: str, **truths: str) -> Raw:
    async def look() -> Raw | None:
        raw = await supervisor(stage, name)
        found = {one["type"]: one["status"] for one in raw.get("status", {}).get("conditions", ())}
        is_seen = raw.get("status", {}).get("observedGeneration") == raw["metadata"]["generation"]
        return raw if is_seen and truths.items() <= found.items() else None

    try:
        found = await eventually(look)
    except AssertionError as error:
        raise AssertionError(f"{error}: {await supervisor(stage, name)}") from error
    assert found is not None
    return found


# ---------------------------------------------------------------- judge and barrier


async def test_a_judge_that_hangs_holds_the_clock_and_is_asked_again_by_the_next_operator(
    stage: Stage, tmp_path: Path
) -> None:
    async with judge_service() as judge:
        settings = judge_settings(judge, tmp_path)
        strict = {"enforcement": "Sync", "judge": judging("HOLD, then FAIL", timeoutSeconds=50), "onViolation": "Abort"}
        operator = await begin(stage, ("strict", strict), **settings, **SHORT_LEASE)
        snapshot = quiet(2)
        await publish_barrier(stage, snapshot)
        await eventually(lambda: _asked(judge, 1))
        shown = await stage.wait_condition("Ready", reason="Barrier")
        assert "strict (Sync)" in shown["message"]
        raw = await stage.run()
        assert raw["status"]["phase"] == "Running"
        assert record(raw).get("clock", {}).get("journalLength", 0) < snapshot["journalLength"]

        operator.kill()
        await operator.wait()
        await operator.start()
        await eventually(lambda: _asked(judge, 2))
        judge.release.set()
        raw = await wait_run(stage, settled())

        assert raw["spec"]["control"]["mode"] == "Abort"
        assert record(raw)["clock"]["journalLength"] == snapshot["journalLength"]
        assert actions(raw)[0]["source"] == "Judge"


async def _asked(judge: JudgeService, count: int) -> bool:
    return len(judge.asked) >= count


async def test_a_judge_that_is_away_is_told_of_and_stops_a_run_that_asks_for_it(stage: Stage, tmp_path: Path) -> None:
    async with judge_service() as judge:
        settings = judge_settings(judge, tmp_path)
        closed = {"enforcement": "Sync", "judge": judging("BREAK", onError="Pause")}
        operator = await begin(stage, ("closed", closed), **settings)
        await publish_barrier(stage, quiet(2))
        raw = await wait_run(stage, settled())
        one = actions(raw)[0]
        assert (one["action"], one["source"], one["reason"]) == ("Pause", "JudgeError", "judge unavailable (BadAnswer)")
        told = await stage.wait_condition("JudgeReady", "False", "JudgeBadAnswer")
        assert "the model gave no verdict" in told["message"]
        await wait_supervisor(stage, "closed", JudgeReady="False", Ready="True")
        failed = [line for line in operator.lines() if line["event"] == "supervisor.judge_failed"]
        assert {(line["supervisor"], line["type"]) for line in failed} == {("closed", "BadAnswer")}


# ---------------------------------------------------------------- counters, and what it costs


async def test_counters_outlive_operators_and_runs(stage: Stage) -> None:
    operator = await begin(stage, ("careful", PAUSES), **SHORT_LEASE)
    for name in ("r2", "r3"):
        await apply_run(stage, name)
        await stage.wait_pod(f"{name}-1")
    for name in ("r1", "r2", "r3"):
        await stage.publish(name, **alarming())
        await wait_run(stage, settled(), name)
    await wait_actions(stage, "careful", pause=3)

    operator.kill()
    await operator.wait()
    await stage.api.delete(AGENTRUNS, stage.namespace, "r1")  # while nobody sees it
    await operator.start()
    await stage.publish("r2", **alarming(4, exit={"signal": "default", "reason": "Complete"}, result={}))
    await stage.end_pod("r2-1")
    await stage.wait_phase("Succeeded", "r2")
    await stage.api.delete(AGENTRUNS, stage.namespace, "r3")
    await wait_run(stage, lambda raw: names.LABEL_FINISHED in raw["metadata"].get("labels", {}), "r2")
    await stage.api.delete(AGENTRUNS, stage.namespace, "r2")
    await apply_run(stage, "r4")
    await stage.wait_pod("r4-1")
    await stage.publish("r4", **alarming())
    await wait_run(stage, settled(), "r4")

    status = await wait_actions(stage, "careful", pause=4)
    await operator.stop()
    await operator.start()
    assert (await wait_actions(stage, "careful", pause=4))["ended"]["actions"]["pause"] == 3
    assert status["lastAction"]["run"] == "r4"
    assert status["watchedRuns"] == 1


def writes_of(stage: Stage, run: str) -> Counter[str]:
    """Who wrote what about one run, of the API server's audit log."""
    found: Counter[str] = Counter()
    for event in stage.cluster.audit_events():
        target = event.get("objectRef", {})
        is_ours = target.get("namespace") == stage.namespace and target.get("name", "").startswith(run)
        is_ours = is_ours and target["resource"] != "events"
        is_write = event["verb"] in ("create", "update", "patch", "delete") and event["responseStatus"]["code"] < 300
        if is_ours and is_write and event["user"]["username"].endswith(":pilothouse-operator"):
            found["/".join(filter(None, (event["verb"], target["resource"], target.get("subresource"))))] += 1
    return found


async def test_an_action_costs_one_patch_and_one_status_write_and_a_quiet_turn_nothing(stage: Stage) -> None:
    """On top of what a directive of a person costs: the acknowledgement of its generation."""
    await begin(stage, ("careful", rules(rule("ToolRepeated", "Steer"))))
    before = await steady(stage)
    for turn in (2, 3, 4):
        await stage.publish(**quiet(turn))
    assert await steady(stage) == before

    await stage.publish(**alarming(5))
    raw = await wait_run(stage, lambda raw: raw["spec"].get("control", {}).get("steer"))
    landing = {"state": "Landed", "turn": 6, "time": now()}
    answer = {**answered("Run", 2, 0), "steer": dict.fromkeys(raw["spec"]["control"]["steer"], landing)}
    await stage.publish(**alarming(6, control=answer))
    await wait_run(stage, lambda raw: "landedTurn" in actions(raw)[0])
    cost = await steady(stage) - before
    assert cost == Counter({"patch/agentruns": 1, "patch/agentruns/status": 2})


async def test_a_barrier_costs_one_status_write_with_its_verdict(stage: Stage, tmp_path: Path) -> None:
    async with judge_service() as judge:
        strict = {"enforcement": "Sync", "judge": judging("Be good.")}
        await begin(stage, ("strict", strict), **judge_settings(judge, tmp_path))
        before = await steady(stage)
        for turn in (2, 3, 4):
            # However slow this machine is: a wait that lasts is shown, which costs a write of its own.
            await publish_barrier(stage, quiet(turn), since=ago(-30))
            length = 10 * turn
            await wait_run(stage, lambda raw, want=length: record(raw)["clock"]["journalLength"] == want)
            await stage.publish(**quiet(turn, journalLength=length + 1))
        assert await steady(stage) - before == Counter({"patch/agentruns/status": 3})
        assert len(judge.asked) == 3


async def steady(stage: Stage) -> Counter[str]:
    """The writes about a run, once none has come for a moment."""
    found = writes_of(stage, "r1")
    while True:
        await asyncio.sleep(2.0)
        again = writes_of(stage, "r1")
        if again == found:
            return found
        found = again
