"""Looks: when supervision sees a run, and what of it; alike out of a journal and out of attempts that keep them."""

from datetime import datetime
from typing import Any

import pytest

from pilothouse_api.structs import Snapshot
from pilothouse_engine.actions import Inputs
from pilothouse_engine.catalog import Catalog, catalog_of
from pilothouse_engine.facts import decode_all
from pilothouse_engine.looks import Looks, RawLook, build_look, looks_of_journal, settle_looks
from pilothouse_engine.ports import ModelRequest
from pilothouse_engine.settings import Settings
from pilothouse_engine.snapshot import build_snapshot
from pilothouse_engine.state import OpenEffect, RunState
from pilothouse_runner.adapters.redis_frames import LookKeeper
from unit.engine.scenarios import Scenario, agent_step, answer, call, calls, function_step, function_tool, scenario

pytestmark = pytest.mark.anyio

SEEN = (
    *("attempt", "journal_length", "step", "visit", "turn", "iteration", "max_iterations"),
    *("visit_counts", "last_progress_time"),
)


def catalog(run: Scenario) -> Catalog:
    return catalog_of(run.plan, run.ports())


async def looks_of(run: Scenario) -> list[RawLook]:
    return list(looks_of_journal(catalog(run), await run.entries()))


def turns(looks: list[RawLook]) -> list[tuple[int, int]]:
    return [(look["run"]["visit"], look["run"]["turn"]) for look in looks]


async def test_a_run_is_seen_at_the_end_of_each_turn_of_an_agent_and_nowhere_else() -> None:
    replies = [
        *(calls(call("lookup")), calls(call("lookup", {"n": 2}), call("sudo")), answer("needs_human")),
        *(calls(call("lookup")), answer("resolved")),
    ]
    first = agent_step("first", {"needs_human": "note"})
    steps = (first, function_step("note", {"default": "second"}), agent_step("second"))
    run = scenario(replies, *steps, functions={"steps:note": lambda arguments: {}})
    await run.finish()
    looks = await looks_of(run)
    assert turns(looks) == [(1, 1), (1, 2), (3, 5)]
    assert [look["run"]["visitCounts"]["toolCalls"] for look in looks] == [{"lookup": 1}, {"lookup": 2}, {"lookup": 1}]
    assert [look["run"]["visitCounts"]["undeclaredToolCalls"] for look in looks] == [0, 1, 0]


async def test_a_run_is_seen_behind_each_call_with_an_effect_while_more_calls_follow() -> None:
    tools = [function_tool("lookup"), function_tool("send", effect="Once")]
    asked = calls(call("send", {"n": 1}), call("lookup"), call("send", {"n": 2}), call("send", {"n": 3}))
    run = scenario([asked, answer("resolved")], agent_step(tools=tools), functions={"tools:send": lambda a: {}})
    await run.finish()
    looks = await looks_of(run)
    assert turns(looks) == [(1, 1)] * 3
    counted = [look["run"]["visitCounts"]["toolCalls"] for look in looks]
    assert counted == [{"send": 1}, {"send": 2, "lookup": 1}, {"send": 3, "lookup": 1}]


@pytest.mark.parametrize(("seconds", "want"), [(9, []), (10, [10]), (50, [50])])
async def test_a_time_without_progress_is_seen_where_it_ends(seconds: int, want: list[int]) -> None:
    async def think(request: ModelRequest) -> Any:
        await run.clock.sleep(seconds)
        return answer("resolved")

    run = scenario([think])
    await run.finish()
    looks = await looks_of(run)
    assert [idle(look) for look in looks] == want


async def test_parked_time_is_none_without_progress() -> None:
    """A rule about time counts unparked seconds: those before the pause and those after it."""

    async def ask(request: ModelRequest) -> Any:
        run.store.set_control(mode="Pause")
        return calls(call("lookup"))

    async def think(request: ModelRequest) -> Any:
        await run.clock.sleep(30)
        return answer("resolved")

    run = scenario([ask, think])
    await run.release()
    run.clock.advance(1000)
    run.store.set_control(mode="Run")
    await run.finish()
    assert [idle(look) for look in await looks_of(run)] == [0, 30]


def idle(look: RawLook) -> int:
    since = datetime.fromisoformat(look["now"]) - datetime.fromisoformat(look["run"]["lastProgressTime"])
    return int(since.total_seconds())


async def test_a_look_says_what_the_snapshot_of_that_moment_says() -> None:
    limits = {"tokenBudget": 5000, "costBudgetUSD": "1"}
    replies = [calls(call("lookup")), calls(call("lookup", {"n": 2})), answer("resolved")]
    run = scenario(replies, agent_step(limits=limits), plan={"limits": limits}, prices={"test-model": (1.0, 2.0)})
    await run.finish()
    known, state, compared = catalog(run), RunState(context=dict(run.plan.input)), 0
    looks = Looks(known)
    inputs = Inputs(attempt=1, settle=None, settings=Settings(), plan_digest="", now=0.0, read_at=0.0)
    for fact in decode_all(await run.entries()):
        for raw in looks.before(state, fact):
            kept, whole = Snapshot.read(raw["run"]), build_snapshot(known, state, inputs)
            assert seen(kept) == seen(whole)
            compared += 1
        state.apply(fact)
    assert compared == 2


def seen(snapshot: Snapshot) -> dict[str, Any]:
    """What an Observation is made of."""
    tokens, cost = snapshot.tokens, snapshot.cost
    assert tokens.visit is not None and cost.visit is not None
    return {
        **{name: getattr(snapshot, name) for name in SEEN},
        "tokens": [(it.used, it.budget) for it in (tokens, tokens.visit)],
        "cost": [(it.used_usd, it.budget_usd) for it in (cost, cost.visit)],
    }


async def test_attempts_keep_what_their_journal_tells() -> None:
    kept: list[RawLook] = []
    tools = [function_tool("lookup"), function_tool("send", effect="Once")]
    replies = [calls(call("send", {"n": 1}), call("lookup")), calls(call("lookup", {"n": 2})), answer("resolved")]
    run = scenario(replies, agent_step(tools=tools), functions={"tools:send": lambda a: {}})
    run.observers = (LookKeeper(catalog(run), lambda look: kept.append(dict(look))),)
    await run.finish()
    assert kept == await looks_of(run)
    assert turns(kept) == [(1, 1), (1, 1), (1, 2)]


def test_looks_of_facts_that_a_crash_took_back_are_dropped() -> None:
    raw = [{"now": str(number), "run": {"journalLength": length}} for number, length in enumerate((5, 9, 9, 12, 8, 11))]
    assert [look["now"] for look in settle_looks(raw)] == ["0", "4", "5"]


async def test_a_look_names_no_tool_of_an_effect_that_nobody_knows() -> None:
    """A server may have chosen that name, and only their number is seen."""
    run = scenario([calls(call("lookup")), answer("resolved")])
    await run.finish()
    state = RunState()
    for fact in list(await run.facts())[:-2]:
        state.apply(fact)
    state.effects_unknown += [OpenEffect("t1-0-abc", "crm__purge", 100.0)] * 2
    look = build_look(catalog(run), state, 200.0)
    assert len(Snapshot.read(look["run"]).effects.unknown) == 2
    assert "purge" not in str(look)
