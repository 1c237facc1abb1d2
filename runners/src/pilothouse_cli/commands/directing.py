"""`pause`, `resume`, `finish`, `abort`, `steer`, `limit` for many runs: which, the question, landings, the report."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.commands.asking import SAID, Count, agree, plural, worst_exit
from pilothouse_cli.commands.places import Place
from pilothouse_cli.commands.steering import check_message, message_directive, new_steer_id, parse_limits
from pilothouse_cli.exits import EXIT_SUCCEEDED
from pilothouse_cli.runs.fleets import Fleet, Order, Outcome, Wait, carry_out
from pilothouse_cli.runs.pending import Choice
from pilothouse_cli.runs.port import snapshot_of, target_of
from pilothouse_cli.terminal import clean_line, print_data, print_names, say
from pilothouse_cli.views.tables import runs_table
from pilothouse_control.directives import (
    Directive,
    is_finished,
    limits_directive,
    mode_directive,
    reason_to_go_on,
)

SHOWN = 20
"""Runs that are listed before a person is asked; of more the rest is counted."""
HARMLESS = frozenset({"Landed", "Asked", "Kept", "Ended", "Superseded", "Gone"})
"""What is no failure: a run that ends meanwhile, by itself or by a stronger directive, goes on no more."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done to many runs: its words, above how many runs a person is asked, and the directive for each."""

    name: str
    done: str
    asked_above: int
    directive_for: Callable[[AgentRun], Directive]


_DONE: Mapping[str, tuple[str, str, int]] = {
    "Pause": ("pause", "parked", 10),
    "Run": ("resume", "resumed", 10),
    "Finish": ("finish", "finishing", 1),
    "Abort": ("abort", "aborted", 1),
}
"""What cannot be taken back is asked about from the second run on."""
CAREFUL_ABOVE = 10


def mode_verb(mode: str, reason: str | None = None) -> Verb:
    """Return the verb that sets a mode."""
    name, done, asked_above = _DONE[mode]

    def directive_for(run: AgentRun) -> Directive:
        """A run that the barrier holds may need a reason, for a Run to be seen."""
        return mode_directive(mode, reason or (reason_to_go_on(run) if mode == "Run" else None))

    return Verb(name, done, asked_above, directive_for)


def steer_verb(message: str, steer_id: str | None) -> Verb:
    """Return the verb that hands every run the same message under the same id; raises CliError for a blank one."""
    check_message(message, "-l LABELS")
    one_id = steer_id or new_steer_id()
    return Verb("steer", "steered", CAREFUL_ABOVE, lambda run: message_directive(message, one_id, run))


def limit_verb(pairs: Sequence[str]) -> Verb:
    """Return the verb that changes limits; raises CliError."""
    directive = limits_directive(parse_limits(pairs))
    return Verb("limit", "limited", CAREFUL_ABOVE, lambda run: directive)


def direct_all(
    place: Place, choice: Choice, verb: Verb, *, is_agreed: bool, wait: bool, timeout: float, output: str
) -> int:
    """Give a directive to all runs that are meant, and say what became of it."""
    fleet = place.fleet()
    runs = [run for run in fleet.select(choice.selector) if is_meant(run, choice)]
    runs.sort(key=lambda run: (run.metadata.namespace or "", run.metadata.name))
    if not runs:
        say(f"no run {'of those ' if choice.is_narrow else ''}is live in {fleet.where}")
        if output not in ("table", "name"):
            print_data([], output)
        return EXIT_SUCCEEDED
    if len(runs) > verb.asked_above:
        question = f"{verb.name} {plural(len(runs), 'run')} in {fleet.where}?"
        agree(_shown(fleet, runs), question, f"pilothouse {verb.name}", is_agreed=is_agreed)
    done = verb.done if wait else f"told to {verb.name}"
    with Count(len(runs), frozenset({"Landed", "Asked"}), done) as count:
        orders = [Order(run, verb.directive_for(run)) for run in runs]
        outcomes = carry_out(fleet, orders, Wait(timeout if wait else 0.0, choice.selector), count.take)
    _report(fleet, verb, outcomes, output)
    say(count.text())
    if verb.name == "abort" and choice.is_all:
        say(_how_to_suspend(place))
    return worst_exit(outcomes, HARMLESS)


def is_meant(run: AgentRun, choice: Choice) -> bool:
    """Tell whether a choice means a run; labels were judged before."""
    return not is_finished(run) and choice.workflow in (None, target_of(run))


def _shown(fleet: Fleet, runs: Sequence[AgentRun]) -> RenderableType:
    table = runs_table(runs[:SHOWN], datetime.now(UTC), fleet.called)
    if len(runs) <= SHOWN:
        return table
    by_target = Counter(target_of(run) for run in runs)
    counted = ", ".join(f"{clean_line(name, 63)} {count:,}" for name, count in by_target.most_common(SHOWN))
    return Group(table, Text(f"and {len(runs) - SHOWN:,} more; in all: {counted}"))


def _how_to_suspend(place: Place) -> str:
    where = place.namespace or "NAMESPACE"
    return f"no new runs either: kubectl annotate namespace {where} {names.ANNOTATION_SUSPEND}=true"


# ---------------------------------------------------------------- the report


def _report(fleet: Fleet, verb: Verb, outcomes: Sequence[Outcome], output: str) -> None:
    """Print every run on a line of its own, those that a person must look at last."""
    if output == "name":
        print_names(outcome.run.metadata.name for outcome in outcomes if outcome.state in HARMLESS)
    elif output != "table":
        print_data([_data(outcome) for outcome in outcomes], output)
    else:
        for outcome in sorted(outcomes, key=lambda one: one.state not in HARMLESS):
            print(_line(fleet, verb, outcome), flush=True)


def _data(outcome: Outcome) -> dict[str, Any]:
    run, snapshot = outcome.run, snapshot_of(outcome.run)
    return {
        "run": run.metadata.name,
        "namespace": run.metadata.namespace,
        "workflow": target_of(run),
        "directive": outcome.order.directive.title,
        "outcome": outcome.state,
        "turn": outcome.turn,
        "message": outcome.message,
        "phase": run.status.phase,
        "effectsUnknown": [effect.call_id for effect in snapshot.effects.unknown],
    }


def _line(fleet: Fleet, verb: Verb, outcome: Outcome) -> str:
    state, run = outcome.state, outcome.run
    said = verb.done if state == "Landed" else f"{outcome.order.directive.title} {_SAID_OF_ONE.get(state, SAID[state])}"
    where = f" at turn {outcome.turn}" if outcome.turn is not None and state != "Waiting" else ""
    why = f": {outcome.message}" if outcome.message else ""
    unknown = len(snapshot_of(run).effects.unknown)
    address = fleet.addressed(run)
    effects = f", {plural(unknown, 'effect')} unknown: pilothouse show {address}" if unknown else ""
    todo = f"; next: pilothouse {_ADVICE[state]} {address}" if state in _ADVICE else ""
    return clean_line(f"{fleet.called(run)}: {said}{where}{why}{effects}{todo}", 500)


_SAID_OF_ONE: Mapping[str, str] = {
    "Kept": "is kept and lands when the run goes on",
    "Unattended": "is kept until the operator is back",
    "Unhosted": "was asked for, and no process advances the run",
    "Ended": "came too late, the run has ended",
    "Gone": "came too late, the run is gone",
}
_ADVICE: Mapping[str, str] = {
    "Unattended": "watch",
    "Unhosted": "resume",
    "Waiting": "watch",
    "NotLanded": "show",
    "Failed": "show",
}
"""The command that a person types next about a run; what a missing right needs, its message says."""
