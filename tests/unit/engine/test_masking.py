"""What status, logs and notifications show of texts that others wrote (api.md, what is masked)."""

import pytest

from pilothouse_engine.facts import RunEnded
from pilothouse_engine.guardrails.masks import mask_text
from pilothouse_engine.ports import FunctionFailure
from pilothouse_engine.snapshot import MAX_PARTIAL_BYTES, run_exit
from unit.engine.scenarios import agent_step, call, calls, failure, function_step, scenario, text

pytestmark = pytest.mark.anyio

MAIL = "jane@example.com"
TOKEN = "Tr0ub4dor-and-3"


async def test_an_error_of_a_step_shows_nothing_of_what_a_mask_finds() -> None:
    raised = FunctionFailure("Raised", f"ValueError: no account of {MAIL}, password={TOKEN}")
    run = scenario([], function_step("one"), functions={"steps:one": lambda arguments: raised})
    end = await run.finish()
    shown = repr(run.snapshot)
    assert MAIL not in shown and TOKEN not in shown
    assert end.exit.error is not None and "no account of [Email]" in end.exit.error.message
    assert MAIL in (await run.state()).engine_context["_last_error"]


async def test_a_partial_text_is_masked_where_it_is_shown_and_whole_in_the_context() -> None:
    run = scenario([calls(call("lookup"), text=f"I wrote to {MAIL}"), failure("Refused")], agent_step())
    end = await run.finish()
    assert end.exit.partial == "I wrote to [Email]"
    assert (await run.state()).engine_context["_partial_result"] == f"I wrote to {MAIL}"


async def test_an_outcome_that_cannot_be_used_is_not_shown_with_what_a_mask_finds() -> None:
    said = f'{{"outcome": "{MAIL}"}}'
    run = scenario([text(said), text(said)], agent_step())
    await run.finish()
    assert MAIL not in repr(run.snapshot)


@pytest.mark.parametrize("before", range(MAX_PARTIAL_BYTES - 20, MAX_PARTIAL_BYTES + 2))
def test_no_cut_of_a_partial_text_shows_half_of_what_is_masked(before: int) -> None:
    partial = ("word " * 1000)[: before - 1] + f" {MAIL} and more"
    exit = run_exit(RunEnded(0.0, "error", "Error", partial=partial))
    assert exit.partial is not None and "jane" not in exit.partial


@pytest.mark.parametrize("said", ["", "the run was active for 3600 s", "t1-0-9f2c11ab of 12000 characters", "turn 12"])
def test_what_the_engine_says_itself_stays_as_it_is(said: str) -> None:
    assert mask_text(said) == said
