"""One directive for many runs: a patch of each, one watch for all of their landings, and what became of each.

The operator is asked for nothing: a landing is judged from what the runner publishes. What waits without a pod is the
operator's to start, and is kept until it does.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from pilothouse_api import signals
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.wake import wake_due
from pilothouse_cli.exits import EXIT_NOT_FOUND, CliError, Forbidden
from pilothouse_cli.runs.port import snapshot_of
from pilothouse_control.directives import Answer, Directive, answer_of, is_finished

CONCURRENCY = 8
"""Patches under way at once: a fleet is directed in seconds, and the API server still answers others."""
OPERATOR_PATIENCE_SECONDS = 20.0
"""How long a run that has no runner may wait before its operator counts as away: longer than a Lease changes hands."""
TROUBLE_PAUSE_SECONDS = 0.5

_ENDINGS = frozenset({"Finish", "Abort"})

RunKey = tuple[str, str]
"""Namespace and name."""


class Fleet(Protocol):
    """Many runs: of a folder, of a namespace, of all namespaces. Every method raises CliError."""

    where: str
    """The place, for messages."""

    def called(self, run: AgentRun) -> str:
        """Return how a run is called there: by its name, or by namespace/name where there are several."""
        ...

    def addressed(self, run: AgentRun) -> str:
        """Return the run as arguments of a command that means it."""
        ...

    def select(self, selector: str | None = None) -> Sequence[AgentRun]:
        """Return the runs that have not ended and fit a label selector, in no order."""
        ...

    def direct(self, run: AgentRun, directive: Directive) -> AgentRun:
        """Patch the spec of this very run, not of a later one of its name, and return it."""
        ...

    def reread(self, run: AgentRun) -> AgentRun:
        """Return this very run as it is now; CliError with EXIT_NOT_FOUND where it is gone."""
        ...

    def looks(self, open_runs: Mapping[RunKey, AgentRun], selector: str | None) -> Iterator[AgentRun | RunKey | None]:
        """Yield runs that changed since `select`, the key of one that is gone, and None at least every few seconds.

        `open_runs` are those that are still of interest; it may shrink meanwhile. `selector` is that of `select`.
        """
        ...

    def is_advancing(self, run: AgentRun) -> bool:
        """Tell whether something advances the run, or will by itself."""
        ...

    def land(self, run: AgentRun) -> AgentRun:
        """Make the attempt that lands a directive to end, in this process, where nothing else ever would."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of one run."""

    run: AgentRun
    directive: Directive


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one order; `run` as it was seen last.

    `state`: Landed; Asked (and not waited for); Kept (lands when the run goes on or begins); Unattended (kept until
    the operator is back); Unhosted (a local run that goes on in no process); Waiting; Ended (before it landed);
    Superseded (by a stronger directive); NotLanded, NotPending, Expired, Decided; Gone; Forbidden; Failed.
    """

    order: Order
    run: AgentRun
    state: str
    turn: int | None = None
    message: str = ""


Tell = Callable[[Outcome], None]
"""Takes each outcome as it comes."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long landings are waited for, in seconds; 0 asks and goes."""

    seconds: float
    selector: str | None = None
    """The selector that the runs were found by."""


def give_directive(fleet: Fleet, order: Order) -> AgentRun:
    """Give an order that nothing has to precede."""
    return fleet.direct(order.run, order.directive)


def carry_out(
    fleet: Fleet,
    orders: Sequence[Order],
    wait: Wait,
    tell: Tell,
    *,
    give: Callable[[Fleet, Order], AgentRun] = give_directive,
    explain: Callable[[Order, AgentRun, CliError], Outcome] | None = None,
) -> list[Outcome]:
    """Give all orders and wait for what becomes of them; the outcomes stand in the order of the orders.

    `give` gives one; `explain` says what a refusal means, given the run as it is now.
    """

    def attempt(order: Order) -> Order | Outcome:
        try:
            return replace(order, run=give(fleet, order))
        except CliError as error:
            return _refused(fleet, order, error, explain or _why_refused)

    def land(order: Order) -> Order | Outcome:
        if order.directive.title not in _ENDINGS or fleet.is_advancing(order.run):
            return order
        try:
            return replace(order, run=fleet.land(order.run))  # the main thread: it takes the signals of the process
        except CliError as error:
            return _unread(order, error)

    following = _Following(fleet, wait, tell)
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        for number, tried in enumerate(pool.map(attempt, orders)):
            done = land(tried) if isinstance(tried, Order) else tried
            if isinstance(done, Outcome):
                following.settle(number, done)
            elif wait.seconds <= 0:
                following.settle(number, Outcome(done, done.run, "Asked"))
            else:
                following.add(number, done)
    following.run()
    return [following.outcomes[number] for number in range(len(orders))]


# ---------------------------------------------------------------- refusals


def _refused(
    fleet: Fleet, order: Order, error: CliError, explain: Callable[[Order, AgentRun, CliError], Outcome]
) -> Outcome:
    if isinstance(error, Forbidden):
        return Outcome(order, order.run, "Forbidden", message=error.message)
    try:
        now = fleet.reread(order.run)
    except CliError as unread:
        return _unread(order, unread)
    if is_finished(now):
        return Outcome(order, now, "Ended", snapshot_of(now).turn)
    return explain(order, now, error)


def _unread(order: Order, error: CliError) -> Outcome:
    if error.code == EXIT_NOT_FOUND and not isinstance(error, Forbidden):
        return Outcome(order, order.run, "Gone")
    return Outcome(order, order.run, "Failed", message=error.message)


def _why_refused(order: Order, now: AgentRun, error: CliError) -> Outcome:
    """A mode that cannot be taken back was there first; else the refusal speaks for itself."""
    mode = now.spec.control.mode if now.spec.control is not None else None
    if mode in ("Finish", "Abort") and "mode" in (order.directive.patch.get("control") or {}):
        return Outcome(order, now, "Superseded", message=f"{mode} was asked for before and cannot be taken back")
    return Outcome(order, now, "Failed", message=error.message)


# ---------------------------------------------------------------- landings


class _Following:
    """Judges every look at every run until all orders are answered, or the time is over."""

    def __init__(self, fleet: Fleet, wait: Wait, tell: Tell) -> None:
        self._fleet, self._wait, self._tell = fleet, wait, tell
        self._begun = time.monotonic()
        self._orders: dict[RunKey, dict[int, Order]] = {}
        """Those that wait for an answer."""
        self._newest: dict[RunKey, AgentRun] = {}
        """Their runs, as they were seen last."""
        self._trouble = ""
        self.outcomes: dict[int, Outcome] = {}

    def settle(self, number: int, outcome: Outcome) -> None:
        """Note what became of an order."""
        self.outcomes[number] = outcome
        self._tell(outcome)

    def add(self, number: int, order: Order) -> None:
        """Wait for the answer to an order that was given."""
        key = key_of(order.run)
        self._orders.setdefault(key, {})[number] = order
        self._newest[key] = order.run

    def run(self) -> None:
        """Return once nothing is waited for any more."""
        self._judge_all()
        if not self._orders:
            return
        for seen in self._looks():
            self._take(seen)
            if seen is None or self._seconds >= self._wait.seconds:
                self._judge_all()
            if not self._orders:
                return

    def _looks(self) -> Iterator[AgentRun | RunKey | None]:
        """Look on through a place that does not answer for a while: what was given stands."""
        while True:
            try:
                for seen in self._fleet.looks(self._newest, self._wait.selector):
                    self._trouble = ""
                    yield seen
            except CliError as error:
                self._trouble = error.message
                yield None
                time.sleep(TROUBLE_PAUSE_SECONDS)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _take(self, seen: AgentRun | RunKey | None) -> None:
        if isinstance(seen, tuple):
            for number, order in self._orders.pop(seen, {}).items():
                self.settle(number, Outcome(order, self._newest[seen], "Gone"))
            self._newest.pop(seen, None)
        elif seen is not None:
            key = key_of(seen)
            if key in self._newest and self._newest[key].metadata.uid == seen.metadata.uid:
                self._newest[key] = seen
                self._judge(key)

    def _judge_all(self) -> None:
        for key in list(self._orders):
            self._judge(key)

    def _judge(self, key: RunKey) -> None:
        orders, run = self._orders[key], self._newest[key]
        is_advancing, seconds = self._fleet.is_advancing(run), self._seconds
        for number, order in list(orders.items()):
            answer = judge(run, order, is_advancing, seconds, self._wait.seconds)
            if answer is not None:
                del orders[number]
                message = answer.message or (self._trouble if answer.state == "Waiting" else "")
                self.settle(number, Outcome(order, run, answer.state, answer.turn, message))
        if not orders:
            del self._orders[key], self._newest[key]


def key_of(run: AgentRun) -> RunKey:
    """Return what names a run."""
    return run.metadata.namespace or "", run.metadata.name


def judge(run: AgentRun, order: Order, is_advancing: bool, seconds: float, limit: float) -> Answer | None:
    """Return what became of an order as a run is `seconds` after it was given, or None while more may come.

    `order.run` is the run as the patch left it; `limit` is how long is waited at most. An Abort is followed to the
    end of the run: only then it is known what nobody knows of its calls.
    """
    generation, is_abort = order.run.metadata.generation or 0, order.directive.title == "Abort"
    is_over = seconds >= limit
    if (run.metadata.generation or 0) < generation:  # an older look
        return Answer("Waiting") if is_over else None
    snapshot = snapshot_of(run)
    answer = answer_of(run, snapshot, order.directive, generation)
    if is_abort and (run.status.phase == "Aborted" or (snapshot.exit and snapshot.exit.signal == signals.ABORTED)):
        return Answer("Landed", snapshot.turn)
    if is_abort and answer == Answer("Landed", snapshot.control.mode.turn) and not (is_over or snapshot.exit):
        return None
    if answer is not None:
        return answer
    if snapshot.exit is not None:  # its operator may not be there to say so
        return Answer("Ended", snapshot.turn)
    is_seen = (run.status.observed_generation or 0) >= generation
    return _unanswered(run, order.directive.title, is_advancing, seconds, is_over=is_over, is_seen=is_seen)


def _unanswered(
    run: AgentRun, title: str, is_advancing: bool, seconds: float, *, is_over: bool, is_seen: bool
) -> Answer | None:
    """Return where an order stands that no runner has answered."""
    snapshot, control = snapshot_of(run), run.spec.control
    if not is_advancing:
        return Answer("Unhosted" if title == "Run" else "Kept")
    is_ending = control is not None and control.mode == "Abort"
    is_without_pod = snapshot.attempt == 0 or (snapshot.parked is not None and snapshot.parked.released)
    if not is_without_pod:
        return Answer("Waiting") if is_over else None
    is_due = is_ending if snapshot.attempt == 0 else wake_due(snapshot, control, datetime.now(UTC))
    if not is_due:
        return Answer("Kept")
    if is_seen:  # the operator is at it
        return Answer("Waiting") if is_over else None
    return Answer("Unattended") if is_over or seconds >= OPERATOR_PATIENCE_SECONDS else None
