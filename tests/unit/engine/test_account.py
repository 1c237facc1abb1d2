"""Money and tokens to the unit: prices, holds, what is left, and how amounts are written (engine.md §1, §5)."""

from typing import Any

import pytest

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.account import (
    NANO,
    SMALLEST_ANSWER_TOKENS,
    Account,
    Charge,
    DoesNotFit,
    Hold,
    Price,
    Remaining,
    charge,
    dollars,
    nano,
    price_of,
    reserve,
    room_for_answer,
    stated_price,
)
from pilothouse_engine.ports import Usage

LONG = 10 * SMALLEST_ANSWER_TOKENS
DOLLAR_A_TOKEN = Price(NANO * 1_000_000, NANO * 1_000_000)


def endpoint(**price: str) -> ModelEndpoint:
    return ModelEndpoint.read({"name": "m"} | ({"price": price} if price else {}))


def test_settling_adds_to_what_was_settled_before() -> None:
    account = Account()
    account.take(Hold(9, 9, 9))
    account.settle(1, 2, 30)
    account.settle(10, 20, 300)
    assert (account.input, account.output, account.used, account.cost) == (11, 22, 33, 330)
    assert (account.held, account.is_unpriced) == (None, False)


def test_what_is_lent_is_taken_back_and_what_was_taken_is_added() -> None:
    account = Account(input=1, output=2, cost=3)
    account.lend(100, 50)
    account.lend(None, None)
    account.lend(10, 5)
    assert (account.lent_tokens, account.lent_cost) == (110, 55)
    account.take_back(None, None, Charge(4, 5, 6, False))
    assert (account.lent_tokens, account.lent_cost) == (110, 55)
    account.take_back(100, 50, Charge(40, 50, 60, False))
    assert (account.lent_tokens, account.lent_cost) == (10, 5)
    assert (account.input, account.output, account.cost, account.is_unpriced) == (45, 57, 69, False)
    account.take_back(10, 5, Charge(0, 0, None, False))
    account.take_back(0, 0, Charge(0, 0, 1, False))
    assert (account.lent_tokens, account.lent_cost, account.cost, account.is_unpriced) == (0, 0, 70, True)


@pytest.mark.parametrize(
    ("remaining", "want"),
    [
        (Remaining(), None),
        (Remaining(tokens=1, tokens_budget=10), None),
        (Remaining(tokens=0, tokens_budget=10), "10 tokens are used of a tokenBudget of 10: raise limits.tokenBudget"),
        (Remaining(tokens=-3, tokens_budget=10), "13 tokens are used of a tokenBudget of 10: raise limits.tokenBudget"),
        (Remaining(cost=1, cost_budget=2 * NANO), None),
        (
            Remaining(cost=0, cost_budget=2 * NANO),
            "2 USD are used of a costBudgetUSD of 2: raise limits.costBudgetUSD",
        ),
        (
            Remaining(cost=-NANO // 2, cost_budget=2 * NANO),
            "2.5 USD are used of a costBudgetUSD of 2: raise limits.costBudgetUSD",
        ),
        (Remaining(tokens=5, tokens_budget=9, cost=0, cost_budget=NANO), "1 USD are used of a costBudgetUSD of 1: "),
    ],
)
def test_a_budget_is_spent_when_nothing_is_left_of_it_and_says_so(remaining: Remaining, want: str | None) -> None:
    said = remaining.spent()
    assert said == want or (want is not None and said is not None and said.startswith(want))


def test_a_hold_has_the_bounds_of_its_call_and_its_price() -> None:
    assert reserve(3, 4, None, Remaining()) == Hold(3, 4, None)
    assert reserve(3, 4, DOLLAR_A_TOKEN, Remaining()) == Hold(3, 4, 7 * NANO)
    assert reserve(3, 4, None, Remaining(tokens=7, tokens_budget=9)) == Hold(3, 4, None)


def test_a_hold_that_does_not_fit_says_what_is_needed_what_is_left_and_what_to_change() -> None:
    tokens = reserve(30, 12, None, Remaining(tokens=41, tokens_budget=99))
    assert isinstance(tokens, DoesNotFit)
    assert "may take 42 tokens (30 of prompt, 12 of output), 41 are left of a tokenBudget of 99" in tokens.message
    money = reserve(2, 1, DOLLAR_A_TOKEN, Remaining(cost=2 * NANO, cost_budget=5 * NANO))
    assert isinstance(money, DoesNotFit)
    assert "may cost 3 USD, 2 are left of a costBudgetUSD of 5" in money.message
    unpriced = reserve(2, 1, None, Remaining(cost=2 * NANO, cost_budget=5 * NANO))
    assert isinstance(unpriced, DoesNotFit) and "model.price" in unpriced.message


@pytest.mark.parametrize(
    ("prompt", "output", "price", "remaining", "want"),
    [
        (100, LONG, None, Remaining(), LONG),
        (100, LONG, None, Remaining(tokens=100 + SMALLEST_ANSWER_TOKENS, tokens_budget=1), SMALLEST_ANSWER_TOKENS),
        (100, LONG, None, Remaining(tokens=99 + SMALLEST_ANSWER_TOKENS, tokens_budget=1), 0),
        (100, 50, None, Remaining(tokens=149, tokens_budget=1), 0),
        (0, LONG, None, Remaining(cost=NANO, cost_budget=1), 0),
        (10, LONG, DOLLAR_A_TOKEN, Remaining(cost=NANO * 500 - 1, cost_budget=1), 489),
        (10, LONG, DOLLAR_A_TOKEN, Remaining(cost=NANO * 500, cost_budget=1), 490),
        (10, LONG, Price(NANO * 1_000_000, 0), Remaining(cost=NANO * 10, cost_budget=1), LONG),
        (10, LONG, Price(NANO * 1_000_000, 0), Remaining(cost=NANO * 10 - 1, cost_budget=1), 0),
        (10, 1, Price(NANO * 1_000_000, 0), Remaining(cost=NANO * 10 - 1, cost_budget=1), 0),
        (9, 300, DOLLAR_A_TOKEN, Remaining(tokens=999, tokens_budget=1, cost=NANO * 280, cost_budget=1), 271),
    ],
)
def test_the_room_for_an_answer_is_the_tightest_one(
    prompt: int, output: int, price: Price | None, remaining: Remaining, want: int
) -> None:
    room = room_for_answer(prompt, output, price, remaining)
    assert (room, type(room)) == (want, int)


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        (Usage(1, 2), Charge(1, 2, 3 * NANO, True)),
        (Usage(None, 2), Charge(30, 2, 32 * NANO, False)),
        (Usage(1, None), Charge(1, 40, 41 * NANO, False)),
        (Usage(), Charge(30, 40, 70 * NANO, False)),
    ],
)
def test_what_a_provider_did_not_count_is_charged_as_it_was_held(usage: Usage, want: Charge) -> None:
    assert charge(Hold(30, 40, 70 * NANO), usage, DOLLAR_A_TOKEN) == want
    assert charge(Hold(30, 40), usage, None).cost is None


def test_the_authors_price_wins_over_the_adapters() -> None:
    own = endpoint(inputPerMillionUSD="0.25", outputPerMillionUSD="1.5")
    assert price_of(own, (9.0, 9.0)) == Price(NANO // 4, NANO * 3 // 2)
    assert price_of(endpoint(), (2.0, 0.5)) == Price(2 * NANO, NANO // 2)
    assert price_of(endpoint(), None) is None
    assert (stated_price(own), stated_price(endpoint())) == ((0.25, 1.5), None)


@pytest.mark.parametrize(
    ("amount", "want"),
    [("0", 0), ("1", NANO), ("0.000000001", 1), ("0.0000000011", 2), ("0.0000000010", 1), ("2.5", NANO * 5 // 2)],
)
def test_amounts_are_whole_nano_dollars_rounded_up(amount: str, want: int) -> None:
    assert nano(amount) == want


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        (0, "0"),
        (10 * NANO, "10"),
        (-NANO // 2, "-0.5"),
        (1, "0.000000001"),
        (1_010_000_000, "1.01"),
        (-1, "-0.000000001"),
    ],
)
def test_amounts_are_written_without_trailing_zeros(amount: int, want: Any) -> None:
    assert dollars(amount) == want
