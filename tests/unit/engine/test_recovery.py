"""Failing tools end a step, with words in place of an answer (engine.md §5)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pilothouse_engine.catalog import Catalog, PlannedStep
from pilothouse_engine.facts import StepFinished
from pilothouse_engine.ports import FunctionFailure, HttpResponse
from pilothouse_engine.recovery import HELP, judge_recovery
from pilothouse_engine.state import COUNTED_ERRORS, Visit
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.journal import MemoryJournal
from unit.engine.scenarios import (
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    function_tool,
    scenario,
)

pytestmark = pytest.mark.anyio

PARAMETERS = {"type": "object", "properties": {"customer": {"type": "string"}}, "required": ["customer", "no name!"]}


def planned_step(**fields: Any) -> PlannedStep:
    step = agent_step(tools=[function_tool("lookup", parameters=PARAMETERS)], **fields)
    return Catalog(build_plan(step), lambda endpoint: None, lambda endpoint: None, is_durable=True).agent("work")


def failed_visit(*errors: tuple[Any, int], failing_batches: int) -> Visit:
    visit = Visit("work", 1, "Agent", 0.0)
    visit.failing_batches = failing_batches
    visit.same_errors = dict(errors)
    return visit


def failing(n: int) -> Callable[[Any], Any]:
    """A tool whose first `n` calls fail, each in its own way."""

    def work(arguments: dict[str, Any]) -> Any:
        return FunctionFailure("Raised", f"boom {arguments['n']}") if arguments["n"] < n else {"found": True}

    return work


# ---------------------------------------------------------------- what is counted


A, B, C = ("lookup", "tool_error", "a"), ("lookup", "tool_error", "b"), ("lookup", "tool_unknown", "a")


@pytest.mark.parametrize(
    ("errors", "batches", "recovery", "want"),
    [
        ([], 0, {}, None),
        ([(A, 1)], 1, {}, None),
        ([(A, 1), (B, 1)], 2, {}, None),
        ([(A, 1), (C, 1)], 2, {}, None),  # the same words with another code are another error
        ([(A, 2)], 2, {}, "SameErrorRepeated"),
        ([(A, 1), (B, 2)], 2, {}, "SameErrorRepeated"),
        ([(A, 1), (B, 1), (C, 1)], 3, {}, "ToolsKeepFailing"),
        ([(A, 2), (B, 1)], 3, {"maxSameError": 3}, "ToolsKeepFailing"),
        ([(A, 2)], 2, {"maxSameError": 3}, None),
        ([(A, 1)], 1, {"maxSameError": 1}, "SameErrorRepeated"),
        ([(A, 1)], 1, {"maxFailingBatches": 1}, "ToolsKeepFailing"),
        ([(A, 1), (B, 1), (C, 1)], 3, {"maxFailingBatches": 4}, None),
    ],
)
def test_the_limits_of_recovery(errors: list[Any], batches: int, recovery: dict[str, int], want: str | None) -> None:
    end = judge_recovery(planned_step(recovery=recovery), failed_visit(*errors, failing_batches=batches))
    assert (end.cause if end else None) == want


async def test_a_batch_counts_once_however_many_of_its_calls_fail() -> None:
    turns = [calls(*(call("lookup", {"n": n}) for n in range(5))), answer("resolved")]
    run = scenario(turns, functions={"tools:lookup": failing(5)})
    assert (await run.finish()).exit.signal == "resolved"


async def test_the_same_error_twice_in_one_batch_is_one() -> None:
    work = {"tools:lookup": lambda arguments: FunctionFailure("Raised", "boom")}
    run = scenario([calls(call("lookup", {"n": 1}), call("lookup", {"n": 2})), answer("resolved")], functions=work)
    assert (await run.finish()).exit.signal == "resolved"


async def test_a_batch_that_goes_well_in_between_forgives_nothing() -> None:
    turns = [calls(call("lookup", {"n": n})) for n in (0, 9, 1, 8, 2)]
    end = await scenario(turns, functions={"tools:lookup": failing(5)}).finish()
    assert end.exit.signal == "unrecoverable"


async def test_the_next_visit_begins_anew() -> None:
    step = agent_step(routes={"needs_human": "work", "resolved": "end"})
    one = calls(call("lookup", {"n": 1}))
    work = {"tools:lookup": lambda arguments: FunctionFailure("Raised", "boom")}
    run = scenario([one, answer("needs_human"), one, answer("resolved")], step, functions=work)
    assert (await run.finish()).exit.signal == "resolved"


async def test_the_count_is_rebuilt_from_the_journal_at_every_fact() -> None:
    def played(lines: list[str], turns: list[Any]) -> Scenario:
        run = scenario(turns, functions={"tools:lookup": failing(9)})
        run.journal = MemoryJournal(durable=True)
        run.journal._lines = list(lines)
        return run

    turns = [calls(call("lookup", {"n": n})) for n in range(3)]
    whole = played([], turns)
    await whole.finish()
    for length in range(1, len(whole.journal._lines)):
        answered = sum('"ReplyReceived"' in line for line in whole.journal._lines[:length])
        run = played(whole.journal._lines[:length], turns[answered:])
        run.attempts = 1
        end = await run.finish()
        assert end.exit.signal == "unrecoverable", whole.journal._lines[length - 1]
        assert (await run.state()).partial == (await whole.state()).partial


# ---------------------------------------------------------------- Finish inside a batch


async def finished_inside(recovery: dict[str, int]) -> Any:
    def work(arguments: dict[str, Any]) -> Any:
        run.store.set_control(mode="Finish")
        return FunctionFailure("Raised", "boom")

    run = scenario(
        [calls(*(call("lookup", {"n": n}) for n in range(3))), answer("resolved")],
        agent_step(tools=[function_tool("lookup", effect="Once")], recovery=recovery),
        functions={"tools:lookup": work},
    )
    end = await run.finish()
    assert run.functions_run() == ["lookup"]
    return end


async def test_after_finish_inside_a_batch_the_calls_that_ran_are_judged() -> None:
    end = await finished_inside({"maxFailingBatches": 1})
    assert (end.exit.signal, end.exit.turn_ending) == ("unrecoverable", "Interrupted")
    assert "lookup failed with tool_error" in end.exit.partial


async def test_after_finish_inside_a_batch_the_calls_that_did_not_run_count_for_nothing() -> None:
    end = await finished_inside({"maxFailingBatches": 2})
    assert (end.exit.signal, end.exit.reason, end.exit.turn_ending) == ("resolved", "FinishedEarly", "Interrupted")


# ---------------------------------------------------------------- the fallback text


def test_there_is_help_for_every_error_that_is_counted() -> None:
    assert set(HELP) == COUNTED_ERRORS


@pytest.mark.parametrize("code", sorted(COUNTED_ERRORS))
def test_the_fallback_names_the_tool_the_error_and_what_helps(code: str) -> None:
    secret = "sk-live-1234567890"
    visit = failed_visit((("lookup", code, f"{secret} is wrong"), 2), failing_batches=2)
    end = judge_recovery(planned_step(), visit)
    assert end is not None
    assert end.fallback.startswith(
        f"No answer was found: lookup failed with {code}, and 2 batches of calls had errors."
    )
    assert "What would help: " in end.fallback
    assert "{" not in end.fallback
    assert secret not in end.fallback + end.message
    assert ("customer" in end.fallback) == (code in ("tool_error", "tool_invalid_arguments"))
    assert "no name!" not in end.fallback


def test_a_name_that_the_model_made_up_is_not_repeated() -> None:
    visit = failed_visit((("rm -rf", "tool_unknown", "there is no such tool"), 2), failing_batches=2)
    end = judge_recovery(planned_step(), visit)
    assert end is not None
    assert "rm -rf" not in end.fallback + end.message
    assert "(undeclared) failed with tool_unknown" in end.fallback


async def test_the_fallback_is_the_partial_result_and_holds_nothing_of_what_the_tool_said() -> None:
    tool = {
        "name": "account",
        "description": "Reads an account.",
        "inlineStep": {"kind": "APICall", "apiCall": {"url": "http://bank.test/accounts"}},
    }
    body = json.dumps({"iban": "DE89370400440532013000"}).encode()
    run = scenario(
        [calls(call("account", {"n": n}), text="let me look") for n in range(2)],
        agent_step(tools=[tool], routes={"unrecoverable": "end"}),
        http=ScriptedHttp(HttpResponse(503, (), body), HttpResponse(503, (), body)),
    )
    end = await run.finish()
    assert end.exit.signal == "unrecoverable"
    want = "No answer was found: account failed with tool_error (HttpStatus), and 2 batches of calls had errors."
    assert end.exit.partial is not None and end.exit.partial.startswith(want)
    finished = (await run.facts_of(StepFinished))[-1]
    assert finished.partial == end.exit.partial
    assert (await run.state()).engine_context["_partial_result"] == end.exit.partial
    assert "DE89" not in json.dumps(run.snapshot.to_raw()) + json.dumps(run.sink.frames)


async def test_other_exits_keep_the_newest_text() -> None:
    step = agent_step(limits={"maxToolCalls": 1})
    turns = [calls(call("lookup", {"n": n}), text=f"text {n}") for n in range(2)]
    end = await scenario(turns, step).finish()
    assert (end.exit.signal, end.exit.partial) == ("unrecoverable", "text 1")
