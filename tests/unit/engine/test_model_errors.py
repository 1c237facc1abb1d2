"""Model errors: retries, their deadline, fallbacks, and the exits (engine.md §5)."""

import asyncio
from itertools import pairwise
from typing import Any, get_args

import pytest

from pilothouse_engine.facts import ModelFailed, ModelStarted
from pilothouse_engine.ports import FailureKind, ModelReply
from pilothouse_engine.retries import FAILURE_CAUSES
from unit.engine.scenarios import ListModel, Scenario, agent_step, answer, call, calls, failure, scenario

pytestmark = pytest.mark.anyio

ALWAYS = {"attempts": 3, "causes": ["Timeout", "Error"], "backoffSeconds": 2, "maxBackoffSeconds": 30}


def requests_of(run: Scenario) -> list[Any]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


@pytest.mark.parametrize("kind", ["Timeout", "Connection", "RateLimited", "ServerError", "Garbage"])
async def test_what_may_pass_is_retried_with_a_growing_wait(kind: str) -> None:
    run = scenario([failure(kind), failure(kind), answer("resolved")], agent_step(retry=ALWAYS))
    assert (await run.finish()).exit.signal == "resolved"
    started = await run.facts_of(ModelStarted)
    assert [fact.attempt for fact in started] == [1, 2, 3]
    assert [fact.turn for fact in started] == [1, 1, 1]
    assert [b.at - a.at for a, b in pairwise(started)] == [2.0, 4.0]
    assert run.snapshot.iteration == 1


@pytest.mark.parametrize(
    "kind", ["Authentication", "InvalidRequest", "Refused", "ContextWindowExceeded", "ScriptSpent"]
)
async def test_what_cannot_pass_is_not_retried(kind: str) -> None:
    run = scenario([failure(kind)], agent_step(retry=ALWAYS))
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "Error")
    want = kind if kind in ("ContextWindowExceeded", "ScriptSpent") else f"Model{kind}"
    assert end.exit.error is not None and end.exit.error.type == want
    assert run.clock.monotonic() == 0


async def test_spent_attempts_exit_error_with_the_providers_message() -> None:
    run = scenario([failure("ServerError")] * 3, agent_step(retry=ALWAYS))
    end = await run.finish()
    assert end.exit.error is not None
    assert (end.exit.error.type, end.exit.error.message) == ("ModelServerError", "the provider said ServerError")
    assert (await run.state()).engine_context["_last_error"] == "the provider said ServerError"


async def test_only_causes_that_the_author_named_are_retried() -> None:
    step = agent_step(retry=ALWAYS | {"causes": ["Timeout"]})
    end = await scenario([failure("RateLimited")], step).finish()
    assert end.exit.error is not None and end.exit.error.type == "ModelRateLimited"


async def test_retry_after_is_honoured() -> None:
    run = scenario([failure("RateLimited", retry_after=17.0), answer("resolved")], agent_step(retry=ALWAYS))
    await run.finish()
    assert run.clock.monotonic() == 17


async def test_a_retry_after_past_the_total_deadline_spends_the_attempts() -> None:
    retry = ALWAYS | {"deadlineSeconds": 60}
    run = scenario([failure("RateLimited", retry_after=100.0)], agent_step(retry=retry))
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ModelRateLimited"
    assert end.exit.error.message == (
        "the provider said RateLimited; it asks to wait 100 s, past retry.deadlineSeconds (60)"
    )
    assert run.clock.monotonic() == 0


async def test_a_failed_call_that_may_have_been_billed_makes_the_cost_unknown_where_no_price_is() -> None:
    run = scenario([failure("Timeout"), answer("resolved")], agent_step(retry=ALWAYS))
    await run.finish()
    (failed,) = await run.facts_of(ModelFailed)
    assert failed.input > 0
    assert failed.cost is None
    assert run.snapshot.cost.unknown


async def test_the_deadline_covers_all_attempts_and_waits() -> None:
    async def slow(request: Any) -> Any:
        await run.clock.sleep(25)
        return failure("Timeout")

    retry = ALWAYS | {"attempts": 10, "deadlineSeconds": 60}
    run = scenario([slow] * 10, agent_step(retry=retry))
    await run.finish()
    assert len(requests_of(run)) == 3


async def test_fallbacks_have_attempts_of_their_own_and_each_takes_a_hold() -> None:
    model = {"name": "first", "maxOutputTokens": 100, "fallbacks": [{"name": "second", "maxOutputTokens": 70}]}
    retry = ALWAYS | {"attempts": 2}
    turns = [failure("ServerError")] * 3 + [answer("resolved")]
    run = scenario(turns, agent_step(model=model, retry=retry))
    assert (await run.finish()).exit.signal == "resolved"
    assert [request.endpoint.name for request in requests_of(run)] == ["first", "first", "second", "second"]
    started = await run.facts_of(ModelStarted)
    assert [(fact.endpoint, fact.attempt, fact.hold_output) for fact in started] == [
        (0, 1, 100),
        (0, 2, 100),
        (1, 1, 70),
        (1, 2, 70),
    ]


async def test_the_next_turn_begins_with_the_agents_own_model_again() -> None:
    model = {"name": "first", "maxOutputTokens": 100, "fallbacks": [{"name": "second"}]}
    turns = [failure("Authentication"), calls(call("lookup")), answer("resolved")]
    run = scenario(turns, agent_step(model=model))
    await run.finish()
    assert [request.endpoint.name for request in requests_of(run)] == ["first", "second", "first"]


async def test_the_form_of_one_provider_is_not_sent_to_another() -> None:
    model = {"name": "first", "maxOutputTokens": 100, "fallbacks": [{"name": "second"}]}
    raw = ModelReply(calls=calls(call("lookup")).calls, raw={"thinking": "…"})
    turns = [raw, failure("Authentication"), answer("resolved")]
    run = scenario(turns, agent_step(model=model))
    await run.finish()
    own, other = requests_of(run)[1:]
    assert [m.raw for m in own.messages if m.role == "assistant"] == [{"thinking": "…"}]
    assert [m.raw for m in other.messages if m.role == "assistant"] == [None]


async def test_an_adapter_that_never_returns_counts_as_a_timeout() -> None:
    async def hang(request: Any) -> Any:
        await asyncio.Event().wait()

    model = {"name": "m", "maxOutputTokens": 100, "timeoutSeconds": 20}
    run = scenario([hang, answer("resolved")], agent_step(model=model, retry=ALWAYS))
    await run.finish()
    failed = (await run.facts_of(ModelFailed))[0]
    assert failed.kind == "Timeout"
    assert failed.at - run.clock._start.timestamp() == 25


async def test_an_abort_lands_while_retries_wait() -> None:
    run = scenario([failure("RateLimited", retry_after=100.0)], agent_step(retry=ALWAYS))
    run.store.on_read = lambda read: run.store.set_control(mode="Abort") if read == 2 else None
    end = await run.finish()
    assert (end.exit.reason, run.clock.monotonic()) == ("Aborted", 0)


async def test_a_retry_that_no_budget_has_room_for_exits_budget_exceeded() -> None:
    step = agent_step(retry=ALWAYS | {"backoffSeconds": 0}, limits={"tokenBudget": 2000})
    run = scenario([failure("Timeout")] * 2, step)
    assert (await run.finish()).exit.signal == "budget_exceeded"


async def test_every_kind_of_failure_has_its_cause() -> None:
    assert set(FAILURE_CAUSES) == set(get_args(FailureKind))
