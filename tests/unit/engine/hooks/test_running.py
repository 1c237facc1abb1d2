"""Hooks of a run: reported, notified off the path, and never in the way (engine.md §15)."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import force_setattr

from pilothouse_engine.facts import Fact, RunEnded, StepFinished
from pilothouse_engine.hooks import runner
from pilothouse_engine.observers import HookEvent, Observer
from pilothouse_engine.ports import HttpFailure, HttpRequest, HttpResponse
from pilothouse_engine.state import RunState
from unit.engine.scenarios import Scenario, agent_step, answer, call, calls, function_step, scenario, text

pytestmark = pytest.mark.anyio

OK = HttpResponse(200)
NOTIFY = {"action": "Notify", "notify": {"step": "page"}}
BODY = {key: f"{{{{ {key} }}}}" for key in ("hook", "event", "workflow", "run", "step", "tool", "signal", "error")}


class Recorder(Observer):
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.lengths: list[int] = []
        self.hooks: list[HookEvent] = []

    def observe(self, state: RunState, fact: Fact) -> None:
        self.facts.append(fact)
        self.lengths.append(state.length)

    def hook_fired(self, event: HookEvent) -> None:
        self.hooks.append(event)

    def results(self) -> list[tuple[str, str]]:
        return [(event.event, event.result) for event in self.hooks]


def page(**fields: Any) -> dict[str, Any]:
    request = {"method": "POST", "url": "http://pager/", "body": BODY, "timeoutSeconds": 5}
    return {"id": "page", "kind": "APICall", "toolOnly": True, "apiCall": request} | fields


def watched(
    turns: Any, *steps: dict[str, Any], hooks: list[dict[str, Any]], **fields: Any
) -> tuple[Scenario, Recorder]:
    recorder = Recorder()
    run = scenario(turns, *steps, plan={"hooks": hooks}, observers=(recorder,), **fields)
    return run, recorder


async def test_an_observer_sees_each_fact_of_its_attempt_once_with_the_state_before_it() -> None:
    run, recorder = watched([calls(call("lookup")), answer("resolved")], hooks=[])
    await run.finish()
    assert recorder.facts == await run.facts()
    assert recorder.lengths == list(range(len(recorder.facts)))


async def test_what_is_folded_from_the_journal_is_not_observed_again() -> None:
    run, recorder = watched(
        [lambda request: run.stop.release() or answer("resolved")], hooks=[{"event": "AfterStep", "action": "Log"}]
    )
    await run.release()
    before = len(await run.facts())
    recorder.facts.clear()
    run.model.turns.append(answer("resolved"))  # type: ignore[attr-defined]
    await run.finish()
    assert recorder.facts == (await run.facts())[before:]
    assert recorder.results() == [("AfterStep", "Done")]


async def test_an_observer_that_raises_is_asked_no_more_and_the_run_goes_on(caplog: Any) -> None:
    class Broken(Recorder):
        def observe(self, state: RunState, fact: Fact) -> None:
            super().observe(state, fact)
            raise KeyError("no such label")

        def hook_fired(self, event: HookEvent) -> None:
            raise ValueError("nor this")

    broken, shy, recorder = Broken(), Broken(), Recorder()
    shy.observe = lambda state, fact: None  # type: ignore[method-assign]
    run = scenario([answer("resolved")], plan={"hooks": [{"event": "AfterStep", "action": "Log"}]})
    run.observers = (broken, shy, recorder)
    await run.finish()
    assert len(broken.facts) == 1
    assert recorder.facts == await run.facts()
    assert recorder.results() == [("AfterStep", "Done")]
    assert ["KeyError" in record.message for record in caplog.records] == [True, False]


async def test_a_sink_that_breaks_is_shown_nothing_more_and_the_run_goes_on(caplog: Any) -> None:
    class Broken:
        shown = 0

        def emit(self, frame: Any) -> None:
            self.shown += 1
            raise ConnectionResetError("the viewer has left")

    run = scenario([calls(call("lookup")), answer("resolved")])
    run.sink = Broken()  # type: ignore[assignment]
    end = await run.finish()
    assert (end.exit.signal, run.sink.shown) == ("resolved", 1)  # type: ignore[attr-defined]
    assert [frame["kind"] for frame in run.snapshot.trace][-2:] == ["Outcome", "Outcome"]
    assert "Broken failed and is asked no more: ConnectionResetError" in caplog.text


async def test_a_notification_carries_the_payload_and_nothing_of_the_context() -> None:
    hooks = [{"event": "AfterTool", **NOTIFY}]
    run, recorder = watched([calls(call("lookup", {"n": 1})), answer("resolved")], agent_step(), page(), hooks=hooks)
    run.http._answers = [OK]
    end = await run.finish()
    [request] = run.http.requests
    assert json.loads(request.body or b"") == {
        "hook": "workflow/0",
        "event": "AfterTool",
        "workflow": "flow",
        "run": "run-1",
        "step": "work",
        "tool": "lookup",
        "signal": "default",
        "error": {"type": "", "message": ""},
    }
    assert recorder.results() == [("AfterTool", "Done")]
    assert end.exit.signal == "resolved"
    assert run.snapshot.tool_calls == {"lookup": 1}
    assert "page" not in json.dumps((await run.state()).context)


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        (HttpResponse(500), "http://pager answered 500"),
        (HttpFailure("Connection", "refused", sent=False), "http://pager: refused"),
        (HttpFailure("Connection", "reset", sent=True), "http://pager: reset"),
        (lambda request: 1 / 0, "internal fault: ZeroDivisionError"),
    ],
)
async def test_a_notification_that_fails_is_told_and_changes_nothing(answered: Any, why: str) -> None:
    run, recorder = watched([answer("resolved")], agent_step(), page(), hooks=[{"event": "AfterStep", **NOTIFY}])
    run.http._answers = [answered]
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("resolved", "Complete")
    [event] = recorder.hooks
    assert event.result == "Failed"
    assert why in event.why


async def test_a_hook_that_names_no_call_is_told_and_changes_nothing() -> None:
    hooks = [{"event": "AfterStep", "action": "Notify", "notify": {"step": name}} for name in ("nobody", "work")]
    run, recorder = watched([answer("resolved")], hooks=hooks)
    await run.finish()
    assert [event.why for event in recorder.hooks] == [
        "there is no step nobody",
        "step work is of kind Agent and not APICall",
    ]


async def test_a_slow_notification_keeps_no_step_waiting_and_no_attempt_for_long() -> None:
    async def never(request: HttpRequest) -> HttpResponse:
        await asyncio.Event().wait()
        raise AssertionError

    hooks = [{"event": "BeforeStep", **NOTIFY}]
    run, recorder = watched([text("x")], agent_step(outcome={}), page(), hooks=hooks)
    run.http._answers = [never]
    force_setattr(run.plan.step("page").api_call, "timeout_seconds", 600)
    end = await run.finish()
    assert end.exit.reason == "Complete"
    assert run.store.published_at[-1] == 0
    assert run.clock.monotonic() == runner.CLOSING_SECONDS
    assert [event.why for event in recorder.hooks] == ["step page was not answered in time"]


async def test_a_notification_has_a_deadline_of_its_own() -> None:
    async def never(request: HttpRequest) -> HttpResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(30)
        assert recorder.results() == [("BeforeStep", "Failed")]
        return {}

    hooks = [{"event": "BeforeStep", **NOTIFY}]
    run, recorder = watched([], function_step("fetch"), page(), hooks=hooks, functions={"steps:fetch": slow})
    run.http._answers = [never]
    await run.finish()
    assert recorder.results() == [("BeforeStep", "Failed")]


async def test_few_notifications_are_sent_at_once_and_those_past_the_bound_are_dropped(monkeypatch: Any) -> None:
    monkeypatch.setattr(runner, "MAX_WAITING", 6)
    in_flight = most = 0

    async def count(request: HttpRequest) -> HttpResponse:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await run.clock.sleep(1)
        in_flight -= 1
        return OK

    hooks = [{"event": "AfterStep", **NOTIFY}] * 9
    run, recorder = watched([answer("resolved")], agent_step(), page(), hooks=hooks)
    run.http._answers = [count]
    await run.finish()
    assert most == runner.MAX_IN_FLIGHT
    assert sorted(result for _, result in recorder.results()) == ["Done"] * 6 + ["Dropped"] * 3


async def test_nothing_is_sent_for_a_fact_that_the_journal_does_not_have() -> None:
    run, recorder = watched([answer("resolved")], agent_step(), page(), hooks=[{"event": "AfterStep", **NOTIFY}])
    run.http._answers = [OK]
    append = run.journal.append

    async def fenced(attempt: int, expected: int, entries: Any) -> None:
        if any(entry["fact"] == "StepFinished" for entry in entries):
            await append(9, expected, [])
        await append(attempt, expected, entries)

    run.journal.append = fenced  # type: ignore[method-assign]
    await run.lose()
    assert any(isinstance(fact, StepFinished) for fact in recorder.facts)
    assert run.http.requests == []
    assert recorder.hooks == []


async def test_a_notification_is_repeated_only_where_its_step_may_be_and_with_the_same_key() -> None:
    call_twice = {**page()["apiCall"], "retry": {"attempts": 2, "causes": ["Error"]}}
    for effect, want in (("Once", 1), ("Idempotent", 2)):
        steps = (agent_step(), page(effect=effect, apiCall=call_twice))
        run, _ = watched([answer("resolved")], *steps, hooks=[{"event": "AfterStep", **NOTIFY}])
        run.http._answers = [HttpResponse(503), OK]
        await run.finish()
        assert len(run.http.requests) == want
        assert len({dict(request.headers)["Idempotency-Key"] for request in run.http.requests}) == 1


async def test_hooks_leave_no_trace_in_journal_and_snapshot() -> None:
    turns = [calls(call("lookup")), answer("resolved")]
    bare = scenario(list(turns), agent_step(), page())
    await bare.finish()
    events = ("BeforeStep", "AfterStep", "BeforeTool", "AfterTool")
    run, _ = watched(list(turns), agent_step(), page(), hooks=[{"event": event, **NOTIFY} for event in events])
    run.http._answers = [HttpResponse(500)]
    await run.finish()
    assert [type(fact) for fact in await run.facts()] == [type(fact) for fact in await bare.facts()]
    assert run.snapshot == bare.snapshot
    assert isinstance((await run.facts())[-1], RunEnded)


async def test_an_artifact_that_cannot_be_read_is_told_once() -> None:
    run, recorder = watched([answer("resolved")], hooks=[{"artifact": "audit@1"}])
    await run.finish()
    [event] = recorder.hooks
    assert (event.hook, event.result) == ("audit@1", "Failed")
    assert "is not in the plan" in event.why


def test_a_plan_without_hooks_loads_none_of_it() -> None:
    program = "import sys, pilothouse_engine.run; print([m for m in sys.modules if 'engine.hooks' in m or m == 'yaml'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "[]"
