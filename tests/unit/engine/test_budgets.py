"""Budgets are reserved before a call, not counted after it (engine.md §1, §5)."""

from typing import Any

import pytest

from pilothouse_engine.account import (
    Account,
    DoesNotFit,
    Hold,
    Price,
    Remaining,
    charge,
    dollars,
    nano,
    reserve,
    room_for_answer,
)
from pilothouse_engine.facts import ModelStarted, ReplyReceived
from pilothouse_engine.ports import Usage
from unit.engine.scenarios import ListModel, Scenario, agent_step, answer, call, calls, failure, scenario, text

pytestmark = pytest.mark.anyio


def requests_of(run: Scenario) -> list[Any]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


async def test_a_hold_is_journaled_before_the_call_and_settled_by_what_was_counted() -> None:
    def look(request: Any) -> Any:
        held.append(run.journal._lines[-1])
        return answer("resolved", usage=Usage(input=77, output=5))

    held: list[str] = []
    run = scenario([look])
    await run.finish()
    started = (await run.facts_of(ModelStarted))[0]
    assert "ModelStarted" in held[0]
    assert started.hold_output == 100
    assert started.hold_input > 77
    assert (run.snapshot.tokens.used, run.snapshot.tokens.input, run.snapshot.tokens.held) == (82, 77, 0)


async def test_the_bound_of_a_prompt_is_at_least_its_bytes_where_nothing_was_counted() -> None:
    run = scenario([answer("resolved")], plan={"input": {"ticket": "é" * 500}})
    await run.finish()
    prompt = sum(len(message.text.encode()) for message in requests_of(run)[0].messages)
    assert (await run.facts_of(ModelStarted))[0].hold_input >= prompt


async def test_after_a_count_only_what_is_new_is_bounded_by_its_bytes() -> None:
    run = scenario([calls(call("lookup"), usage=Usage(input=400, output=20)), answer("resolved")])
    await run.finish()
    first, second = await run.facts_of(ModelStarted)
    assert first.hold_input > 600
    assert 420 < second.hold_input < 420 + 120


async def test_unknown_usage_leaves_the_hold_standing() -> None:
    run = scenario([answer("resolved", usage=Usage())])
    await run.finish()
    started = (await run.facts_of(ModelStarted))[0]
    assert run.snapshot.tokens.used == started.hold_input + started.hold_output


async def test_a_prompt_that_does_not_fit_is_not_sent_and_exits_budget_exceeded() -> None:
    run = scenario([], agent_step(limits={"tokenBudget": 200}))
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("budget_exceeded", "BudgetExceeded")
    assert end.exit.error is not None and "tokenBudget of 200" in end.exit.error.message
    assert requests_of(run) == []


async def test_a_wrap_up_turn_with_a_smaller_hold_is_made_where_it_still_fits() -> None:
    step = agent_step(limits={"tokenBudget": 3000}, model={"name": "m", "maxOutputTokens": 900})
    run = scenario([calls(call("lookup"), usage=Usage(input=600, output=500)), answer("needs_human")], step)
    run.plan.spec.steps[0].routes["needs_human"] = "end"
    end = await run.finish()
    assert (end.exit.signal, end.exit.turn_ending) == ("needs_human", "StepLimit")
    last = requests_of(run)[1]
    assert not last.tools
    assert 256 <= last.endpoint.max_output_tokens < 900
    holds = await run.facts_of(ModelStarted)
    assert holds[1].hold_input + holds[1].hold_output <= 3000 - 1100


async def test_a_wrap_up_turn_of_the_budget_that_asks_for_tools_exits_budget_exceeded() -> None:
    step = agent_step(limits={"tokenBudget": 3000}, model={"name": "m", "maxOutputTokens": 900})
    turns = [calls(call("lookup"), usage=Usage(input=600, output=500)), calls(call("lookup", {"n": 2}))]
    run = scenario(turns, step)
    assert (await run.finish()).exit.signal == "budget_exceeded"
    assert run.functions_run() == ["lookup"]
    assert len(requests_of(run)) == 2


async def test_calls_of_a_reply_that_spent_the_budget_do_not_run() -> None:
    run = scenario([calls(call("lookup"), usage=Usage(input=5000, output=1))], agent_step(limits={"tokenBudget": 4000}))
    end = await run.finish()
    assert end.exit.signal == "budget_exceeded"
    assert run.functions_run() == []


async def test_the_tighter_remainder_of_run_and_visit_binds() -> None:
    run = scenario(
        [answer("resolved", usage=Usage(input=1900, output=90))],
        agent_step("one", routes={"resolved": "two"}),
        agent_step("two", limits={"tokenBudget": 60_000}),
        plan={"limits": {"tokenBudget": 2000}},
    )
    end = await run.finish()
    assert end.exit.error is not None and "tokenBudget of 2000" in end.exit.error.message
    assert run.snapshot.steps[1].signal == "budget_exceeded"


async def test_money_is_counted_and_bounded_with_a_known_price() -> None:
    price = {"inputPerMillionUSD": "1000", "outputPerMillionUSD": "2000"}
    model = {"name": "m", "maxOutputTokens": 100, "price": price}
    step = agent_step(model=model, limits={"costBudgetUSD": "2.50"})
    run = scenario([calls(call("lookup"), usage=Usage(input=1000, output=200)), answer("resolved")], step)
    end = await run.finish()
    assert run.snapshot.cost.used_usd == "1.4"
    assert end.exit.signal == "budget_exceeded"
    assert end.exit.error is not None and "costBudgetUSD of 2.5" in end.exit.error.message


async def test_a_price_of_the_adapter_serves_where_the_author_wrote_none() -> None:
    run = scenario([answer("resolved", usage=Usage(input=10, output=10))], prices={"test-model": (1.0, 2.0)})
    await run.finish()
    assert run.snapshot.cost.used_usd == "0.00003"
    assert not run.snapshot.cost.unknown


async def test_a_cost_budget_without_a_known_price_makes_no_call() -> None:
    run = scenario([], agent_step(limits={"costBudgetUSD": "1"}))
    end = await run.finish()
    assert end.exit.error is not None and "known price" in end.exit.error.message


async def test_a_cost_budget_that_is_set_on_a_live_run_of_unknown_price_ends_it_and_says_why() -> None:
    def set_budget(request: Any) -> Any:
        run.store.set_limits(costBudgetUSD="5")
        return calls(call("lookup"))

    run = scenario([set_budget])
    end = await run.finish()
    assert (end.exit.signal, len(requests_of(run))) == ("budget_exceeded", 1)
    assert end.exit.error is not None
    assert end.exit.error.message == (
        "a costBudgetUSD of 5 cannot be kept, because calls were made whose price is not known: set model.price, or"
        " remove limits.costBudgetUSD"
    )
    assert run.snapshot.control.limits is not None  # it was answered before it bit
    assert (run.snapshot.cost.unknown, run.snapshot.cost.used_usd, run.snapshot.cost.budget_usd) == (True, "0", "5")


async def test_a_fallback_of_unknown_price_is_not_called_under_a_cost_budget() -> None:
    model = {"name": "priced", "maxOutputTokens": 100, "fallbacks": [{"name": "unpriced"}]}
    step = agent_step(model=model, retry={"attempts": 1}, limits={"costBudgetUSD": "1"})
    run = scenario([failure("ServerError")], step, prices={"priced": (1.0, 2.0)})
    end = await run.finish()
    assert end.exit.error is not None
    assert (end.exit.signal, end.exit.error.message) == (
        "budget_exceeded",
        "a costBudgetUSD needs a known price: set model.price",
    )
    assert not run.snapshot.cost.unknown


async def test_what_an_unpriced_step_took_is_not_known_to_the_budget_of_a_later_one() -> None:
    def set_budget(request: Any) -> Any:
        run.store.set_limits(costBudgetUSD="5")
        return answer("resolved")

    run = scenario(
        [set_budget],
        agent_step("one", routes={"resolved": "two"}),
        agent_step("two", model={"name": "priced", "maxOutputTokens": 100}),
        prices={"priced": (1.0, 2.0)},
    )
    end = await run.finish()
    assert [step.signal for step in run.snapshot.steps] == ["resolved", "budget_exceeded"]
    assert end.exit.error is not None and "price is not known" in end.exit.error.message


async def test_failed_attempts_are_charged_only_where_they_may_have_been_billed() -> None:
    retry = {"attempts": 4, "causes": ["Timeout", "Error"], "backoffSeconds": 0}
    turns = [failure("RateLimited"), failure("Timeout"), failure("Connection", sent=True), answer("resolved")]
    run = scenario(turns, agent_step(retry=retry))
    await run.finish()
    started = await run.facts_of(ModelStarted)
    holds = [fact.hold_input + fact.hold_output for fact in started]
    reply = (await run.facts_of(ReplyReceived))[0]
    assert run.snapshot.tokens.used == holds[1] + holds[2] + reply.input + reply.output


async def test_a_repair_is_paid_from_the_same_budget() -> None:
    run = scenario([text("no", usage=Usage(input=1500, output=50))], agent_step(limits={"tokenBudget": 1600}))
    assert (await run.finish()).exit.signal == "budget_exceeded"


# ---------------------------------------------------------------- the account itself


def test_a_hold_that_is_left_open_is_charged_whole() -> None:
    account = Account()
    account.take(Hold(100, 20, 7))
    account.take(Hold(1, 1, 1))
    assert (account.used, account.cost, account.held) == (120, 7, Hold(1, 1, 1))
    account.settle(3, 4, None)
    assert (account.used, account.is_unpriced, account.held) == (127, True, None)


@pytest.mark.parametrize(
    ("remaining", "fits"),
    [
        (Remaining(), True),
        (Remaining(tokens=15, tokens_budget=20), True),
        (Remaining(tokens=14, tokens_budget=20), False),
        (Remaining(cost=20, cost_budget=99), True),
        (Remaining(cost=19, cost_budget=99), False),
    ],
)
def test_a_hold_fits_or_says_why(remaining: Remaining, fits: bool) -> None:
    price = Price(1_000_000, 2_000_000)
    hold = reserve(10, 5, price, remaining)
    assert isinstance(hold, Hold) is fits
    assert isinstance(hold, DoesNotFit) is not fits


def test_room_for_an_answer_is_what_is_left_beside_the_prompt() -> None:
    assert room_for_answer(100, 500, None, Remaining(tokens=400, tokens_budget=999)) == 300
    assert room_for_answer(100, 500, None, Remaining(tokens=300, tokens_budget=999)) == 0
    assert room_for_answer(100, 50, None, Remaining(tokens=150, tokens_budget=999)) == 50
    assert room_for_answer(0, 500, Price(0, 1_000_000), Remaining(cost=300, cost_budget=999)) == 300


def test_prices_round_up_and_money_is_written_without_zeros() -> None:
    assert Price(nano("0.40"), nano("1.60")).of(1, 0) == 400
    assert Price(1, 0).of(1, 0) == 1
    assert [dollars(amount) for amount in (0, 1, 1_500_000_000, 2_000_000_000)] == ["0", "0.000000001", "1.5", "2"]
    assert charge(Hold(9, 9, None), Usage(input=None, output=2), None).input == 9
