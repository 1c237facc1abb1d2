"""What people see: snapshots under their cap and coalesced, frames without values (engine.md §16)."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_api.structs import Snapshot, VisitCounts
from pilothouse_engine.actions import Inputs
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import FACTS, RunEnded, decode_all
from pilothouse_engine.frames import advance
from pilothouse_engine.ports import Directives, Frame, ModelReply, ModelRequest, StoreFailure
from pilothouse_engine.results import compact
from pilothouse_engine.settings import Settings
from pilothouse_engine.snapshot import REFERENCE_BYTES, build_snapshot, fit_result, fit_snapshot
from pilothouse_engine.state import _APPLY, Answer, OpenEffect, Report, RunState
from unit.engine.hostile import examples
from unit.engine.scenarios import (
    ListModel,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    failure,
    function_step,
    function_tool,
    response_step,
    scenario,
)

pytestmark = pytest.mark.anyio

CAP = 32_768


class HangingModel(ListModel):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__([self._hang])

    async def _hang(self, request: ModelRequest) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")


TEXT = st.text(max_size=40) | st.sampled_from(["x" * 5000, "é" * 3000, "😀" * 2000, '"\\' * 2000, "\x00" * 900])


@st.composite
def states(draw: st.DrawFn) -> RunState:
    state = RunState(attempt=1, started_at=1.0)
    count = draw(st.sampled_from([0, 3, 200]))
    label = draw(TEXT)
    state.reports = [Report(f"step-{n}"[:63], n, "Agent", 1.0, signal="s" * 63) for n in range(count)]
    state.tool_calls = {f"{'t' * 50}{n}": n for n in range(draw(st.integers(0, 64)))}
    state.steers = {f"{'i' * 60}{n}": Answer("Landed", n, 1.0) for n in range(draw(st.integers(0, 90)))}
    state.effects_unknown = [OpenEffect(f"t{n}-0-deadbeef", "t" * 63, 1.0) for n in range(draw(st.integers(0, 300)))]
    state.trace.extend({"kind": "Step", "step": label, "turn": n} for n in range(20))
    if draw(st.booleans()):
        state.ended = RunEnded(
            2.0, "error", "Error", label * 2, "ToolTimeout", label, label * 3, None, {"a": label, "b": [label] * 3}
        )
    return state


@given(states())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_snapshot_stays_under_its_cap_whatever_stands_in_it(state: RunState) -> None:
    catalog = Catalog(build_plan(agent_step("step-0")), lambda endpoint: None, lambda endpoint: None, is_durable=True)
    inputs = Inputs(1, None, Settings(), "d", 2.0, 2.0, directives=Directives("uid-1", 1))
    snapshot = build_snapshot(catalog, state, inputs)
    raw = snapshot.to_raw()
    assert len(compact(raw).encode("utf-8", "replace")) <= CAP
    assert Snapshot.read(raw).to_raw() == raw
    if state.ended is not None:
        assert snapshot.exit is not None and snapshot.exit.reason == "Error"
        assert len((snapshot.exit.partial or "").encode()) <= 2048


async def test_huge_results_leave_the_snapshot_small_and_point_at_the_journal() -> None:
    run = scenario(
        [calls(call("lookup"), text="t" * 50_000), answer("resolved", {"text": "r" * 60_000})],
        agent_step(routes={"resolved": "tell"}),
        response_step("tell", all="work_result"),
        functions={"tools:lookup": lambda arguments: {"blob": "z" * 900_000}},
    )
    end = await run.finish()
    assert end.result == {"all": {"text": "r" * 60_000}}
    assert run.snapshot.result is not None and run.snapshot.result["ref"] == "journal/result"
    assert all(len(msgspec.json.encode(s)) <= CAP for s in run.store.snapshots)


async def test_snapshots_are_coalesced_to_one_an_interval() -> None:
    async def turn(request: Any) -> Any:
        await run.clock.sleep(0.1)
        return calls(call("lookup", {"n": run.clock.monotonic()}))

    turns = [turn] * 100 + [answer("resolved")]
    run = scenario(turns, agent_step(limits={"maxIterations": 200, "maxToolCalls": 200}))
    await run.finish()
    assert 8 <= len(run.store.snapshots) <= 13
    first, *gaps = [b - a for a, b in zip(run.store.published_at[:-2], run.store.published_at[1:-1], strict=True)]
    assert min(gaps) >= 0.999
    assert first == pytest.approx(0.1), "that the attempt has begun holds its first turn back no longer than it takes"


async def test_short_turns_are_published_however_long_their_journal_takes() -> None:
    """A turn marks and then writes: whoever looks at that moment never finds a journal that holds everything."""

    async def turn(request: Any) -> Any:
        await run.clock.sleep(0.1)
        return calls(call("lookup", {"n": run.clock.monotonic()}))

    async def append_slowly(*arguments: Any) -> None:
        await run.clock.sleep(0.01)
        await append(*arguments)

    run = scenario([turn] * 50 + [answer("resolved")], agent_step(limits={"maxIterations": 60, "maxToolCalls": 60}))
    append, run.journal.append = run.journal.append, append_slowly  # type: ignore[method-assign]
    await run.finish()
    assert run.store.published_at[0] <= 0.05, "that the attempt has begun is said as soon as it is journaled"
    assert run.store.snapshots[1].turn == 1
    gaps = [b - a for a, b in zip(run.store.published_at[1:-2], run.store.published_at[2:-1], strict=True)]
    assert min(gaps) >= 0.999 and max(gaps) <= 1.2


async def test_a_first_turn_that_ends_while_the_beginning_is_published_does_not_wait_for_an_interval() -> None:
    async def turn(request: Any) -> Any:
        await run.clock.sleep(0.03)
        return calls(call("lookup", {"n": run.clock.monotonic()}))

    async def publish_slowly(snapshot: Any) -> Any:
        await run.clock.sleep(0.05)
        return await publish(snapshot)

    run = scenario([turn] * 50 + [answer("resolved")], agent_step(limits={"maxIterations": 60, "maxToolCalls": 60}))
    publish, run.store.publish = run.store.publish, publish_slowly  # type: ignore[method-assign]
    await run.finish()
    assert run.store.published_at[:2] == pytest.approx([0.05, 0.1], abs=0.001)
    assert run.store.snapshots[1].turn >= 1


async def test_a_slow_turn_is_published_once_while_its_calls_run() -> None:
    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(5)
        return {"x": 1}

    async def think(request: Any) -> Any:
        await run.clock.sleep(3)
        return calls(call("lookup", {"n": request.turn}))

    run = scenario([think, think, think, answer("resolved")], functions={"tools:lookup": slow})
    await run.finish()
    assert [s.turn for s in run.store.snapshots] == [1, 1, 2, 3, 4]
    assert [s.tokens.used for s in run.store.snapshots] == [0, 60, 120, 180, 240]


async def test_the_call_that_runs_is_named_while_it_runs() -> None:
    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(20)
        return {"x": 1}

    run = scenario([calls(call("lookup")), answer("resolved")], functions={"tools:lookup": slow})
    named: list[tuple[str, str] | None] = []
    run.store.on_publish = lambda s: named.append((s.running.tool, s.running.since) if s.running else None)
    await run.finish()
    assert ("lookup", "2030-01-01T00:00:00.000Z") in named
    assert named[-1] is None


async def test_a_start_an_end_and_each_turn_are_all_that_is_written() -> None:
    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(2)
        return {}

    async def think(request: Any) -> Any:
        await run.clock.sleep(2)
        return calls(call("lookup")) if request.turn < 4 else answer("resolved")

    run = scenario(
        [think] * 3,
        function_step("fetch", routes={"default": "work"}),
        agent_step(routes={"resolved": "tell"}),
        response_step("tell", a="work_result"),
        functions={"tools:lookup": slow, "steps:fetch": slow},
    )
    await run.finish()
    assert len(run.store.snapshots) <= run.snapshot.turn + 2


async def test_a_store_that_is_away_is_tried_again_and_the_end_is_published_surely() -> None:
    run = scenario([answer("resolved")])
    run.store.refusals = [StoreFailure("Unavailable", "503")] * 4
    await run.finish()
    assert run.snapshot.exit is not None
    assert run.clock.monotonic() > 1


async def test_a_snapshot_that_is_refused_is_a_fault() -> None:
    run = scenario([answer("resolved")])
    run.store.refusals = [StoreFailure("Refused", "422 too large")]
    with pytest.raises(RuntimeError, match="422 too large"):
        await run.attempt()


async def test_a_fault_of_the_store_behind_the_loops_back_is_not_swallowed() -> None:
    async def slow(request: Any) -> Any:
        run.store.publish = boom  # type: ignore[method-assign]
        await run.clock.sleep(30)
        return calls(call("lookup"))

    async def boom(snapshot: Snapshot) -> None:
        raise ZeroDivisionError("a bug in an adapter")

    run = scenario([slow, answer("resolved")])
    with pytest.raises(ZeroDivisionError):
        await run.attempt()


async def test_frames_carry_loop_facts_and_no_values() -> None:
    tools = [function_tool("lookup"), function_tool("note", effect="Once")]
    run = scenario(
        [
            calls(call("lookup", {"secret": "s3cr3t"}), call("sudo", {}), text="private words"),
            answer("resolved", "hush"),
        ],
        agent_step(tools=tools),
        functions={"tools:lookup": lambda arguments: {"result": "confidential"}},
    )
    run.store.set_control(steer={"a1": {"message": "be careful"}})
    await run.finish()
    frames = [dict(frame) for frame in run.sink.frames]
    text = json.dumps(frames)
    for word in ("s3cr3t", "sudo", "private", "hush", "confidential", "careful", "charged"):
        assert word not in text
    assert [frame["kind"] for frame in frames] == [
        "Step",
        "Control",
        "Iteration",
        "ToolCall",
        "ToolCall",
        "Iteration",
        "Step",
        "Outcome",
        "Outcome",
    ]
    iteration = frames[2]
    assert (iteration["turn"], iteration["iteration"], iteration["toolCalls"], iteration["tokens"]) == (1, 1, 2, 60)
    assert [(f["tool"], f["code"]) for f in frames if f["kind"] == "ToolCall"] == [
        ("lookup", "ok"),
        ("(undeclared)", "tool_unknown"),
    ]
    assert [dict(frame) for frame in run.snapshot.trace] == frames


async def test_a_frame_is_shown_once_the_journal_holds_what_it_tells() -> None:
    """A crash would take back what was only buffered, and the next attempt might do otherwise."""
    run = scenario([calls(call("lookup")), answer("resolved")])
    early: list[Frame] = []

    class Sink:
        def emit(self, frame: Frame) -> None:
            entries = [json.loads(line) for line in run.journal._lines]
            state = RunState(context=dict(run.plan.input))
            if frame not in [told for fact in decode_all(entries) for told in advance(state, fact)]:
                early.append(frame)
            shown.append(frame)

    shown: list[Frame] = []
    run.sink = Sink()  # type: ignore[assignment]
    await run.finish()
    assert [frame["kind"] for frame in shown] == [
        "Step",
        "Iteration",
        "ToolCall",
        "Iteration",
        "Step",
        "Outcome",
        "Outcome",
    ]
    assert early == []


async def test_the_iteration_is_not_taken_back_by_a_crash_in_its_model_call() -> None:
    """Turns and iterations never go back, also where the iteration got no reply."""
    run = scenario([])
    run.model = HangingModel()
    run.store.on_publish = lambda snapshot: run.stop.release() if snapshot.iteration else None
    await run.release()
    assert [snapshot.iteration for snapshot in run.store.snapshots][-1] == 1
    run.model, run.store.on_publish = ListModel([failure("Authentication")]), lambda snapshot: None
    await run.finish()
    iterations = [snapshot.iteration for snapshot in run.store.snapshots]
    assert iterations == sorted(iterations)
    assert run.snapshot.iteration == 1


async def test_the_trace_is_the_newest_twenty_frames_and_survives_a_resume() -> None:
    turns: list[Any] = [calls(call("lookup", {"n": n})) for n in range(15)]

    async def stop(request: Any) -> Any:
        run.stop.release()
        await asyncio.Event().wait()

    run = scenario([*turns, stop, answer("resolved")], agent_step(limits={"maxIterations": 99}))
    await run.release()
    before = list(run.snapshot.trace)
    assert len(before) == 20
    await run.finish()
    assert before[-1] in run.snapshot.trace


def test_every_fact_is_applied() -> None:
    assert set(_APPLY) == set(FACTS.values())


async def test_tool_names_of_the_model_never_reach_the_snapshot() -> None:
    asked = [calls(call(f"ignore_all_{n}")) for n in range(2)]
    run = scenario([*asked, answer("resolved")])
    await run.finish()
    assert isinstance(run.model, ListModel)
    assert "ignore_all" not in repr(run.snapshot)
    assert run.snapshot.undeclared_tool_calls == 2


def test_a_reference_to_a_result_still_refers_to_it_where_the_snapshot_is_cut() -> None:
    reference = fit_result({"text": "x" * 10_000}, 8192)
    assert reference is not None and reference["bytes"] == len(compact({"text": "x" * 10_000}))
    assert len(compact(reference)) <= REFERENCE_BYTES
    cut = fit_snapshot(Snapshot(attempt=1, result=reference), 1)
    assert (cut.result, cut.truncated) == (reference, True)
    shown = fit_snapshot(Snapshot(attempt=1, result={"text": "x" * 1000}), 1)
    assert shown.result == fit_result({"text": "x" * 1000}, 0)


async def test_a_snapshot_says_what_the_open_visit_of_an_agent_has_called_and_paid() -> None:
    seen: list[Snapshot] = []

    async def look(request: Any) -> Any:
        await run.clock.sleep(60)
        seen.append(run.snapshot)
        return answer("resolved")

    turns = [calls(call("lookup"), call("sudo")), answer("needs_human"), calls(call("lookup", {"n": 1})), look]
    first = agent_step("first", {"needs_human": "second"}, limits={"costBudgetUSD": "1"})
    run = scenario(turns, first, agent_step("second"), prices={"test-model": (1.0, 2.0)})
    await run.finish()
    [snapshot] = seen
    assert snapshot.visit_counts == VisitCounts(tool_calls={"lookup": 1}, identical_calls=1)
    assert (snapshot.tool_calls, snapshot.undeclared_tool_calls, snapshot.tool_errors) == ({"lookup": 2}, 1, 1)
    assert snapshot.cost.visit is not None
    assert (snapshot.cost.used_usd, snapshot.cost.visit.used_usd) == ("0.00021", "0.00007")
    assert (run.snapshot.visit_counts, run.snapshot.cost.visit) == (None, None)


def test_the_tools_of_a_visit_that_were_called_most_are_told_last_of_all() -> None:
    counts = VisitCounts(tool_calls={f"tool-{n}": n for n in range(100)}, tool_errors=7)
    cut = fit_snapshot(Snapshot(attempt=1, visit_counts=counts), 1)
    assert cut.visit_counts is not None
    assert list(cut.visit_counts.tool_calls.items()) == [(f"tool-{n}", n) for n in range(99, 67, -1)]
    assert cut.visit_counts.tool_errors == 7
