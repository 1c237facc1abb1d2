"""Supervisor: a circuit breaker: deterministic rules and an optional LLM judge."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pilothouse_api.v1alpha1.base import Model, Rule, StatusModel, list_map
from pilothouse_api.v1alpha1.common import ActionCounts, Cel, Conditions, Line, Name, TextSource, discriminated

STEER_MESSAGE = "Refocus on the task and finish with what you have."
"""What a Steer of a rule says where its supervisor says nothing else."""


class ToolRepeated(Model):
    """A tool was called often."""

    tool: Annotated[str, Field(min_length=1, max_length=192)] | None = None
    """The tool; any single one where unset."""
    count: Annotated[int, Field(ge=1, le=10000)] = 3
    """This many calls or more."""


class BudgetFraction(Model):
    """A budget is nearly spent."""

    percent: Annotated[int, Field(ge=0, le=100)] = 80
    """Strictly more than this part of the budget."""


class IterationReached(Model):
    """An iteration was reached."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    """This iteration or a later one."""


class IdenticalCallRepeated(Model):
    """The same call was asked for again and again."""

    count: Annotated[int, Field(ge=2, le=1000)] = 3
    """This many or more in a row."""


class NoProgressFor(Model):
    """Nothing happened."""

    seconds: Annotated[int, Field(ge=10, le=604_800)]
    """Unparked time without progress."""


class ExpressionRule(Model):
    """A CEL expression over the Observation."""

    cel: Cel
    """Sees the Observation as `run`; a part of CEL without functions that make texts or lists grow. An error does not
    fire."""


class SupervisorRule(Model):
    """One rule; fires at most once per visit."""

    RULES: ClassVar = (
        discriminated(
            "when",
            {"NoProgressFor": "noProgressFor", "Expression": "expression"},
            optional={
                "ToolRepeated": "toolRepeated",
                "BudgetFraction": "budgetFraction",
                "IterationReached": "iterationReached",
                "IdenticalCallRepeated": "identicalCallRepeated",
            },
        ),
    )

    name: Name
    """Name of the rule."""
    when: Literal[
        "ToolRepeated",
        "BudgetFraction",
        "IterationReached",
        "IdenticalCallRepeated",
        "UndeclaredToolCalled",
        "NoProgressFor",
        "Expression",
    ]
    """What is wrong."""
    tool_repeated: ToolRepeated | None = None
    """Parameters of ToolRepeated."""
    budget_fraction: BudgetFraction | None = None
    """Parameters of BudgetFraction."""
    iteration_reached: IterationReached | None = None
    """Parameters of IterationReached."""
    identical_call_repeated: IdenticalCallRepeated | None = None
    """Parameters of IdenticalCallRepeated."""
    no_progress_for: NoProgressFor | None = None
    """Parameters of NoProgressFor."""
    expression: ExpressionRule | None = None
    """Parameters of Expression."""
    then: Literal["Pause", "Steer", "Abort"] | None = None
    """What is done; default: onViolation."""


class Judge(Model):
    """An LLM that looks at the Observation."""

    model: Name
    """A name of the platform's table (chart value judge.models)."""
    criteria: TextSource
    """What must hold."""
    every_n_iterations: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often it is asked."""
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    """Deadline of one verdict."""
    on_error: Literal["Ignore", "Pause", "Abort"] = "Ignore"
    """What a judge that does not answer means: Ignore is fail-open, the others are fail-closed."""
    token_budget: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Most tokens of the judge per run."""


class LabelRequirement(Model):
    """One requirement of a label selector."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "values is set with In and NotIn, and only with them",
            field_path=".values",
        ),
    )

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label is compared."""
    values: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=32)] = []
    """Values of In and NotIn."""


class LabelSelector(Model):
    """Selects objects by label, in the form of Kubernetes' own; all parts must hold, none selects everything."""

    match_labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] = {}
    """Labels and their values."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=32)] = []
    """Requirements."""


class SupervisorSpec(Model):
    """What is watched, and what is done."""

    RULES: ClassVar = (
        Rule(
            "!has(self.judge) || (self.?enforcement.orValue('Async') == 'Async' && !has(self.barrierTimeoutSeconds))"
            " || self.?barrierTimeoutSeconds.orValue(60) > self.judge.?timeoutSeconds.orValue(30)",
            "barrierTimeoutSeconds (default 60) must exceed judge.timeoutSeconds (default 30)",
            field_path=".barrierTimeoutSeconds",
        ),
        Rule(
            "!has(self.steerMessage) || self.steerMessage.trim() != ''",
            "a steer message cannot be blank",
            field_path=".steerMessage",
        ),
        Rule(
            "(has(self.rules) && self.rules.size() > 0) || has(self.judge)",
            "a supervisor needs rules, a judge, or both",
        ),
    )

    selector: LabelSelector | None = None
    """Selects runs by label, besides those whose workflow refers to it; {} selects all, absent none."""
    enforcement: Literal["Async", "Sync"] = "Async"
    """Sync holds every turn until this supervisor has seen the last one."""
    on_barrier_timeout: Literal["Continue", "Pause", "Abort"] = "Pause"
    """Sync: what a late verdict means."""
    barrier_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Sync: how long a turn waits."""
    rules: Annotated[list[SupervisorRule], Field(max_length=32), list_map("name")] = []
    """Deterministic rules."""
    on_violation: Literal["Pause", "Steer", "Abort"] = "Pause"
    """What is done when a rule has no `then`, or the judge fails the run."""
    steer_message: Annotated[str, Field(min_length=1, max_length=4096)] = STEER_MESSAGE
    """Text of a Steer."""
    judge: Judge | None = None
    """The judge."""


class JudgeStatus(StatusModel):
    """How the judge does."""

    calls: int = 0
    """Verdicts asked for."""
    failures: int = 0
    """Verdicts not given."""
    tokens_used: int = 0
    """Tokens."""
    last_error: Line | None = None
    """The newest failure."""


class LastAction(StatusModel):
    """The newest intervention."""

    run: Annotated[str, Field(max_length=253)]
    """Run."""
    action: Annotated[str, Field(max_length=64)]
    """What was done."""
    source: Annotated[str, Field(max_length=128)]
    """Rule or judge."""
    reason: Line
    """Why."""
    turn: int
    """Turn of the run."""
    time: Annotated[str, Field(max_length=64)]
    """When."""


class EndedRuns(StatusModel):
    """The part of the counters that came of runs which have ended or are gone: they are counted once, and outlived."""

    actions: ActionCounts = Field(default_factory=ActionCounts)
    """What was done to them."""
    judge: JudgeStatus = Field(default_factory=JudgeStatus)
    """What their verdicts took."""
    runs: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=10_000)] = []
    """Uids of those that are counted here and still have to leave the operator's watch."""


class SupervisorStatus(StatusModel):
    """What the operator says about a supervisor."""

    observed_generation: int | None = None
    """Generation that was judged."""
    conditions: Conditions = []
    """Ready, Reconciling, Stalled, JudgeReady."""
    watched_runs: int | None = None
    """Live runs that it watches."""
    actions: ActionCounts | None = None
    """What was done."""
    judge: JudgeStatus | None = None
    """How the judge does."""
    last_action: LastAction | None = None
    """The newest intervention."""
    ended: EndedRuns | None = None
    """What of the counters is no longer read from runs."""
