"""What the operator API answers with; their JSON schemas are its OpenAPI."""

from typing import Any, Literal

from pilothouse_console.summaries import RunSummary, Shown
from pilothouse_control.directives import Answer


class RunList(Shown):
    """A page of runs, newest first."""

    items: tuple[RunSummary, ...]
    """Runs."""
    next_token: str | None = None
    """Send it as `continue` for the next page; absent on the last."""
    is_live: bool
    """False while the API server cannot be followed: this is how runs were when it was last heard of."""
    degraded: bool | None = None
    """True while the fleet's Redis is away: only runs of this cluster are shown. Absent without a fleet."""
    clusters: tuple["ClusterView", ...] | None = None
    """The clusters of the fleet, this one among them. Absent without a fleet."""


class ClusterView(Shown):
    """A cluster of the fleet."""

    name: str
    """Name."""
    seen_at: str
    """When it was there last, RFC 3339."""
    is_shown: bool
    """False where it does not say which of its runs the caller may see: none is shown then."""


class RunView(Shown):
    """One run."""

    summary: RunSummary
    """The run in one line."""
    object: dict[str, Any]
    """The AgentRun, but for its managed fields."""
    may: "Rights"
    """What the caller may do with it."""
    is_live: bool
    """False while the API server cannot be followed."""


class Rights(Shown):
    """What the caller may do with a run that has not ended."""

    steer: bool
    """Pause, resume, finish, abort, steer (the verb patch)."""
    approve: bool
    """Decide on calls (patch and approve)."""
    limit: bool
    """Change limits (patch and limit)."""


class Landing(Shown):
    """What became of a directive."""

    state: Literal["Landed", "NotLanded", "NotPending", "Expired", "Superseded", "Kept", "Waiting", "Ended", "Unknown"]
    """Landed; NotLanded, NotPending, Expired, Superseded (answered so); Kept (lands when the run goes on);
    Waiting (not within the time that was waited); Ended (the run has, first); Unknown (a word of a newer runner)."""
    turn: int | None = None
    """At which turn."""
    message: str | None = None
    """Why, where there is more to say."""


_STATES = frozenset({"Landed", "NotLanded", "NotPending", "Expired", "Superseded", "Kept", "Waiting", "Ended"})


def landing_of(answer: Answer) -> Landing:
    """Return what became of a directive as it is told."""
    state: Any = answer.state if answer.state in _STATES else "Unknown"
    return Landing(state=state, turn=answer.turn, message=answer.message or None)


class DirectiveAnswer(Shown):
    """A directive that stands in the run's spec."""

    accepted: Literal[True] = True
    """True: it was written."""
    id: str
    """Its id: of a steer message or a decision its key, else the kind and the generation of the spec."""
    generation: int
    """Generation of the run's spec that holds it."""
    by: str
    """Who gave it."""
    landing: Landing | None = None
    """What became of it, where it was waited for."""


class TraceItem(Shown):
    """One thing that happened in a run."""

    time: str
    """When, RFC 3339."""
    turn: int
    """In which turn."""
    source: Literal["Runner", "Supervision"]
    """Who tells: the runner's frames, or the record of supervision."""
    kind: str
    """Step, Iteration, ToolCall, Policy, Guardrail, Control, Tools, Park, Outcome; of supervision its action."""
    detail: dict[str, Any]
    """The frame or the action itself."""


class Trace(Shown):
    """What happened in a run, oldest first."""

    items: tuple[TraceItem, ...]
    """Frames and actions, by time."""
    origin: Literal["Stream", "Status"]
    """Where frames come from: the stream in Redis (newest 1,000), or the run's status (newest 20)."""


class Look(Shown):
    """What supervision saw of a run at one moment, as the runner has kept it: an Observation is made of it and a plan.

    Every name in it is to be checked by the plan.
    """

    now: str
    """The moment, RFC 3339."""
    run: dict[str, Any]
    """The fields of the snapshot (`status.run`) that are seen."""


class Looks(Shown):
    """What supervision saw of a run, whether anybody watched it or not, oldest first: the newest 500 looks."""

    items: tuple[Look, ...]
    """Looks; where a crash took facts back, a later look of a shorter journal follows those that are none any more."""
    is_cut: Literal[True] | None = None
    """True where older ones are left out, since all together are longer than 4 MiB."""


class Result(Shown):
    """A result."""

    id: str
    """Its id."""
    bytes: int
    """Length of its JSON."""
    digest: str | None = None
    """SHA-256 of its JSON, of one that is kept by reference."""
    result: dict[str, Any]
    """The result."""
