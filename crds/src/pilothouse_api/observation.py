"""The Observation: all that rules, CEL expressions and the judge may see of a run (supervision.md).

Made by `pilothouse_control.supervision.observe` from a snapshot and the plan, never from a model's words: names that
the model or a server chose do not reach it. CEL sees it as `run`, with the names of its JSON form.
"""

from typing import Annotated

from pydantic import Field

from pilothouse_api.v1alpha1.base import StatusModel


class Spend(StatusModel):
    """What was used of a budget."""

    used: int = 0
    """Tokens, settled."""
    budget: int | None = None
    """The effective budget of tokens; absent where there is none."""
    used_usd: Annotated[str, Field(alias="usedUSD")] = "0"
    """Money, US dollars, settled."""
    budget_usd: Annotated[str | None, Field(alias="budgetUSD")] = None
    """The effective budget of money; absent where there is none."""


class Observation(StatusModel):
    """One look at a run: the visit of an Agent step that is open, at one moment."""

    step: str
    """The Agent step."""
    visit: int
    """Which visit of the run it is, from 1; with `turn` the clock of supervision."""
    turn: int
    """Turns of the run."""
    iteration: int
    """Model calls of the visit."""
    max_iterations: int
    """The effective limit of the visit."""
    spend: Spend = Field(default_factory=Spend)
    """Of the run."""
    visit_spend: Spend = Field(default_factory=Spend)
    """Of the visit."""
    tool_calls: dict[str, int] = {}
    """Calls of the visit by tool: the author's names, `allow` entries of MCP servers, engine tools."""
    undeclared_tool_calls: int = 0
    """Calls of the visit whose tool was not declared."""
    tool_errors: int = 0
    """Results of the visit that are errors."""
    identical_calls: int = 0
    """Longest run of identical calls of the visit; guarded and denied ones count."""
    effects_unknown: int = 0
    """Calls of the run that started and of which nobody knows whether they were done."""
    last_progress_time: str | None = None
    """When something was last settled, RFC 3339."""
    idle_seconds: int = 0
    """Unparked time since then, at `now`."""
    now: str
    """When it was taken, RFC 3339."""
