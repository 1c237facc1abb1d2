"""Tokens and money: reserve a hold, settle it with what the call really took. The only way to spend.

Money is whole nano-dollars, rounded up per call, so that adding never drifts below what was billed.
"""

from decimal import ROUND_CEILING, Decimal

from msgspec import Struct

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import Usage
from pilothouse_engine.values import Value

NANO = 1_000_000_000
MILLION = 1_000_000

ASSUMED_OUTPUT_TOKENS = 4096
"""Output bound of a call whose model.maxOutputTokens is not set: such an agent can have no tokenBudget of its own,
but a run can be given one while it lives."""

SMALLEST_ANSWER_TOKENS = 256
"""A wrap-up turn with less room for its answer is not worth its prompt."""


class Price(Value):
    """Nano-dollars per million tokens."""

    input: int
    output: int

    def of(self, input_tokens: int, output_tokens: int) -> int:
        """Return what so many tokens cost, in nano-dollars, rounded up."""
        return -(-(input_tokens * self.input + output_tokens * self.output) // MILLION)


class Hold(Value):
    """What is reserved for one attempt of a call; `cost` is None where no price is known."""

    input: int
    output: int
    cost: int | None = None


class DoesNotFit(Value):
    """Why a hold cannot be taken, for people."""

    message: str


class Charge(Value):
    """What a call took. `counted`: the provider gave both counts."""

    input: int
    output: int
    cost: int | None
    counted: bool


class Remaining(Value):
    """What may still be spent, by the tightest budget; None where there is none.

    `is_unpriced`: calls were made of which nobody knows the price, so that what is left of a cost budget is not known.
    """

    tokens: int | None = None
    tokens_budget: int | None = None
    cost: int | None = None
    cost_budget: int | None = None
    is_unpriced: bool = False

    def spent(self) -> str | None:
        """Return which budget is spent, as a sentence, or None."""
        if self.tokens is not None and self.tokens_budget is not None and self.tokens <= 0:
            return (
                f"{self.tokens_budget - self.tokens} tokens are used of a tokenBudget of {self.tokens_budget}:"
                " raise limits.tokenBudget"
            )
        if self.cost is None or self.cost_budget is None:
            return None
        if self.is_unpriced:
            return (
                f"a costBudgetUSD of {dollars(self.cost_budget)} cannot be kept, because calls were made whose price is"
                " not known: set model.price, or remove limits.costBudgetUSD"
            )
        if self.cost <= 0:
            return (
                f"{dollars(self.cost_budget - self.cost)} USD are used of a costBudgetUSD of"
                f" {dollars(self.cost_budget)}: raise limits.costBudgetUSD"
            )
        return None


class Account(Struct):
    """What was spent and what is held, of a run or of a visit."""

    input: int = 0
    output: int = 0
    cost: int = 0
    held: Hold | None = None
    lent_tokens: int = 0
    lent_cost: int = 0
    is_unpriced: bool = False

    @property
    def used(self) -> int:
        """Tokens that are settled."""
        return self.input + self.output

    @property
    def bound(self) -> int:
        """Tokens that are settled, and those that children hold."""
        return self.input + self.output + self.lent_tokens

    @property
    def bound_cost(self) -> int:
        """Money that is settled, and that which children hold."""
        return self.cost + self.lent_cost

    def take(self, hold: Hold) -> None:
        """Reserve; a hold that was left open is charged whole first."""
        self.forfeit()
        self.held = hold

    def settle(self, input_tokens: int, output_tokens: int, cost: int | None) -> None:
        """Replace the hold by what was taken."""
        self.held = None
        self.input += input_tokens
        self.output += output_tokens
        if cost is None:
            self.is_unpriced = True
        else:
            self.cost += cost

    def lend(self, tokens: int | None, cost: int | None) -> None:
        """Reserve for a child; None where there is no budget to lend of."""
        self.lent_tokens += tokens or 0
        self.lent_cost += cost or 0

    def take_back(self, tokens: int | None, cost: int | None, taken: Charge) -> None:
        """Replace what was lent by what the child took."""
        self.lent_tokens -= tokens or 0
        self.lent_cost -= cost or 0
        self.input += taken.input
        self.output += taken.output
        self.cost += taken.cost or 0
        self.is_unpriced = self.is_unpriced or taken.cost is None

    def forfeit(self) -> None:
        """Charge a hold whole: its call was started and nobody knows what it took."""
        if self.held is not None:
            self.settle(self.held.input, self.held.output, self.held.cost)


def reserve(prompt: int, output: int, price: Price | None, remaining: Remaining) -> Hold | DoesNotFit:
    """Return the hold of a call with these bounds (tokens), or why no budget has room for it."""
    need = prompt + output
    if remaining.tokens is not None and need > remaining.tokens:
        return DoesNotFit(
            f"the next call may take {need} tokens ({prompt} of prompt, {output} of output), {remaining.tokens} are"
            f" left of a tokenBudget of {remaining.tokens_budget}: raise limits.tokenBudget or lower"
            " model.maxOutputTokens"
        )
    cost = price.of(prompt, output) if price else None
    if remaining.cost is not None and remaining.cost_budget is not None:
        if cost is None:
            return DoesNotFit("a costBudgetUSD needs a known price: set model.price")
        if cost > remaining.cost:
            return DoesNotFit(
                f"the next call may cost {dollars(cost)} USD, {dollars(remaining.cost)} are left of a costBudgetUSD of"
                f" {dollars(remaining.cost_budget)}: raise limits.costBudgetUSD"
            )
    return Hold(prompt, output, cost)


def room_for_answer(prompt: int, output: int, price: Price | None, remaining: Remaining) -> int:
    """Return the longest output, in tokens, that fits beside a prompt; at most `output`, 0 where it is too short."""
    room = output
    if remaining.tokens is not None:
        room = min(room, remaining.tokens - prompt)
    if remaining.cost is not None:
        if price is None:
            return 0
        left = remaining.cost * MILLION - prompt * price.input
        room = min(room, left // price.output if price.output else (room if left >= 0 else 0))
    return room if room >= min(output, SMALLEST_ANSWER_TOKENS) else 0


def charge(hold: Hold, usage: Usage, price: Price | None) -> Charge:
    """Return what a reply took: what the provider counted, and the hold where it did not."""
    taken_input = hold.input if usage.input is None else usage.input
    taken_output = hold.output if usage.output is None else usage.output
    cost = price.of(taken_input, taken_output) if price else None
    return Charge(taken_input, taken_output, cost, usage.input is not None and usage.output is not None)


def price_of(endpoint: ModelEndpoint, known: tuple[float, float] | None) -> Price | None:
    """Return the price of an endpoint: what its author wrote, else the adapter's (US dollars per million tokens)."""
    if endpoint.price is not None:
        return Price(nano(endpoint.price.input_per_million_usd), nano(endpoint.price.output_per_million_usd))
    return Price(nano(str(known[0])), nano(str(known[1]))) if known is not None else None


def stated_price(endpoint: ModelEndpoint) -> tuple[float, float] | None:
    """Return the price that the manifest states, US dollars per million (input, output) tokens."""
    if endpoint.price is None:
        return None
    return float(endpoint.price.input_per_million_usd), float(endpoint.price.output_per_million_usd)


def nano(amount: str) -> int:
    """Return a decimal amount of US dollars in nano-dollars, rounded up."""
    return int((Decimal(amount) * NANO).to_integral_value(ROUND_CEILING))


def dollars(amount: int) -> str:
    """Return nano-dollars as a decimal amount of US dollars, without trailing zeros."""
    whole, rest = divmod(abs(amount), NANO)
    digits = f"{rest:09d}".rstrip("0")
    text = f"{whole}.{digits}" if digits else str(whole)
    return f"-{text}" if amount < 0 else text
