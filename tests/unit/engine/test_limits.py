"""The limits that are in force."""

from pilothouse_api.structs import AgentLimits, LiveCeilings, RunLimits, RunTotals
from pilothouse_engine.limits import Limits, effective_limits

NO_CEILINGS = LiveCeilings()


def limits_of(changed: RunLimits, ceilings: LiveCeilings = NO_CEILINGS) -> Limits:
    own = AgentLimits(tool_timeout_seconds=300, pause_seconds=300, token_budget=1000)
    return effective_limits(own, RunTotals(token_budget=5000), changed, ceilings, is_durable=False)


def test_what_is_changed_on_a_live_run_wins_over_the_agents_limit() -> None:
    got = limits_of(RunLimits(tool_timeout_seconds=600, pause_seconds=0))

    assert (got.tool_timeout, got.pause_seconds) == (600.0, 0.0)


def test_a_live_run_is_not_relaxed_beyond_the_ceilings_of_the_platform() -> None:
    got = limits_of(
        RunLimits(tool_timeout_seconds=80_000, pause_seconds=600_000),
        LiveCeilings(tool_timeout_seconds=900, pause_seconds=1200),
    )

    assert (got.tool_timeout, got.pause_seconds) == (900.0, 1200.0)


def test_the_tighter_of_two_totals_binds() -> None:
    assert limits_of(RunLimits(token_budget=90_000)).run_tokens == 5000
    assert limits_of(RunLimits(token_budget=200)).run_tokens == 200
