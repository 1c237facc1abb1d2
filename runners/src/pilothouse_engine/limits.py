"""The limits that are in force: the agent's, the workflow's totals, and what was changed on the live run."""

from pilothouse_api.structs import AgentLimits, LiveCeilings, RunLimits, RunTotals
from pilothouse_engine.account import Account, Remaining, nano
from pilothouse_engine.values import Value


class Limits(Value):
    """Effective limits of a visit, and of the run around it; money in nano-dollars, None where there is no limit."""

    max_iterations: int
    visit_tokens: int | None
    visit_cost: int | None
    run_tokens: int | None
    run_cost: int | None
    max_tool_calls: int
    run_tool_calls: int | None
    max_parallel_tool_calls: int
    tool_timeout: float
    max_tool_result_chars: int
    pause_seconds: float
    on_pause_timeout: str

    @property
    def is_unbounded(self) -> bool:
        """Whether there is no budget at all."""
        has_tokens = self.run_tokens is not None or self.visit_tokens is not None
        return not has_tokens and self.run_cost is None and self.visit_cost is None

    def remaining(self, run: Account, visit: Account) -> Remaining:
        """Return what may still be spent: the tighter remainder of the run's and the visit's budgets binds."""
        if self.is_unbounded:
            return _UNBOUNDED
        tokens = _tighter((self.run_tokens, run.bound), (self.visit_tokens, visit.bound))
        cost = _tighter((self.run_cost, run.bound_cost), (self.visit_cost, visit.bound_cost))
        is_unpriced = (run.is_unpriced and self.run_cost is not None) or (
            visit.is_unpriced and self.visit_cost is not None
        )
        return Remaining(tokens[0], tokens[1], cost[0], cost[1], is_unpriced)


_UNBOUNDED = Remaining()


def _tighter(*budgets: tuple[int | None, int]) -> tuple[int | None, int | None]:
    left = [(budget - used, budget) for budget, used in budgets if budget is not None]
    return min(left) if left else (None, None)


def effective_limits(
    agent: AgentLimits | None,
    totals: RunTotals,
    changed: RunLimits | None,
    ceilings: LiveCeilings,
    *,
    is_durable: bool,
) -> Limits:
    """Combine limits: totals bind by their tighter one, all else is what was changed last, up to the ceilings."""
    own, new = agent or AgentLimits(), changed or RunLimits()
    on_timeout = new.on_pause_timeout or own.on_pause_timeout or ("Release" if is_durable else "Abort")
    return Limits(
        max_iterations=own.max_iterations if new.max_iterations is None else new.max_iterations,
        visit_tokens=own.token_budget,
        visit_cost=_nano(own.cost_budget_usd),
        run_tokens=_least(totals.token_budget, new.token_budget),
        run_cost=_least(_nano(totals.cost_budget_usd), _nano(new.cost_budget_usd)),
        max_tool_calls=own.max_tool_calls,
        run_tool_calls=_least(totals.max_tool_calls, new.max_tool_calls),
        max_parallel_tool_calls=new.max_parallel_tool_calls or own.max_parallel_tool_calls,
        tool_timeout=_at_most(new.tool_timeout_seconds or own.tool_timeout_seconds, ceilings.tool_timeout_seconds),
        max_tool_result_chars=new.max_tool_result_chars or own.max_tool_result_chars,
        pause_seconds=_at_most(
            own.pause_seconds if new.pause_seconds is None else new.pause_seconds, ceilings.pause_seconds
        ),
        on_pause_timeout=on_timeout,
    )


def _at_most(seconds: int, ceiling: int | None) -> float:
    return float(seconds if ceiling is None else min(seconds, ceiling))


def _least(*limits: int | None) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _nano(amount: str | None) -> int | None:
    return None if amount is None else nano(amount)
