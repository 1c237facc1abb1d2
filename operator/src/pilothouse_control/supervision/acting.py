"""From findings to directives: intents, which of them wins, when one is done, and the patch that carries them out.

An intent is recorded first, patched then, and done once it stands in `spec.control`; a host that dies in between goes
on from the record. Who else may have written `spec.control` in the meantime is told by what stands there:

- Abort is never taken back, so that one that does not stand was never there: it is patched until it stands.
- A Steer has an id that lands once, whoever adds it again.
- A Pause that does not stand, in a run whose generation has moved since the intent, may have been there and been
  answered by a person: it is Superseded, unless its patch is known not to have been made (`unapplied`).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pilothouse_api import names
from pilothouse_api.v1alpha1.agentrun import Control, Snapshot, SupervisionAction, SupervisorRecord
from pilothouse_api.v1alpha1.supervisor import STEER_MESSAGE
from pilothouse_control.directives import MAX_STEERS, prunable_steers
from pilothouse_control.supervision.bindings import Binding
from pilothouse_control.supervision.findings import JUDGE, JUDGE_ERROR, Finding
from pilothouse_control.supervision.values import Directive, SupervisionView

MAX_ACTIONS = 20
MAX_MODES = 16
"""How many intents of the same mode are recorded side by side; one of them is enough to set it."""
MAX_ID = 63
MAX_LINE = 1024
_OWN_STEER = re.compile(r"^(sup|judge)-[0-9]{6,}-")
_NO_ID = re.compile(r"[^A-Za-z0-9.-]+")
SEVERITY: Mapping[str, int] = {"Steer": 0, "Pause": 1, "Abort": 2}
BARRIER, BARRIER_TIMEOUT = "Barrier", "BarrierTimeout"
INTENDED, DONE, SUPERSEDED, DROPPED = "Intended", "Done", "Superseded", "Dropped"


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands in `spec.control` and what the runner has answered, as it is read together with the record."""

    mode: str
    steers: frozenset[str]
    answered: frozenset[str]
    generation: int

    @staticmethod
    def of(view: SupervisionView) -> "Standing":
        """Return what stands in a view."""
        control = view.run.spec.control or Control()
        answered = view.snapshot.control.steer if view.snapshot is not None else {}
        generation = view.run.metadata.generation or 0
        return Standing(control.mode or "Run", frozenset(control.steer), frozenset(answered), generation)

    @property
    def prunable(self) -> frozenset[str]:
        """Messages of supervisors that were answered: they may be taken away once the map is half full."""
        return prunable_steers(self.steers, self.answered, _OWN_STEER)

    @property
    def room(self) -> int:
        """How many more messages may be added."""
        return max(0, MAX_STEERS - len(self.steers - self.prunable))


def action_id(finding: Finding, turn: int) -> str:
    """Return the id of an intervention; of a Steer it is the key of its message.

    An underscore ends the supervisor's name, which holds none: rule c of a-b is another one than rule b-c of a.
    """
    if finding.source in (JUDGE, JUDGE_ERROR):
        return names.fit(f"judge-{turn:06d}-{finding.binding.name}", MAX_ID)
    return names.fit(f"sup-{turn:06d}-{finding.binding.name}_{_rule_word(finding.rule or '')}", MAX_ID)


def _rule_word(name: str) -> str:
    """Return a rule's name as it stands in an id; one with characters that no id may hold is told by its hash."""
    plain = _NO_ID.sub("-", name)
    return name if plain == name else f"{plain}_{names.short_hash(name)}"


def identity_of(action: SupervisionAction) -> tuple[str | int, ...]:
    """Return what tells an intervention from any other one of its run.

    A message has its id, under which it lands once. A mode may be set anew in the same turn: in the next visit, which
    begins at the turn that ended the last one, and by a supervisor that was changed.
    """
    who = (action.id, action.action, action.supervisor_uid)
    return who if action.action == "Steer" else (*who, action.visit, action.generation)


def one_line(text: str) -> str:
    """Return a text on one line, no longer than a line of the API may be."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def _timestamp(now: datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")


def intend(findings: Sequence[Finding], snapshot: Snapshot, generation: int, now: datetime) -> list[SupervisionAction]:
    """Return the intents of findings of one snapshot."""
    return [
        SupervisionAction(
            id=action_id(finding, snapshot.turn),
            time=_timestamp(now),
            supervisor=finding.binding.name,
            supervisor_uid=finding.binding.uid,
            generation=finding.binding.generation,
            action=finding.action,
            source=finding.source,
            reason=one_line(finding.reason),
            turn=snapshot.turn,
            visit=snapshot.visit,
            state=INTENDED,
            run_generation=generation,
        )
        for finding in findings
    ]


def note_barrier(binding: Binding, snapshot: Snapshot, now: datetime) -> SupervisionAction | None:
    """Return what the runner itself did because a supervisor was late, None where it did nothing.

    Once for a turn; its id tells whether it is known already.
    """
    if snapshot.parked is not None and snapshot.parked.is_barrier_pause:
        action, turn, why = "Pause", snapshot.parked.turn, snapshot.parked.message or ""
    elif snapshot.exit is not None and snapshot.exit.reason == BARRIER_TIMEOUT:
        action, turn, why = "Abort", snapshot.turn, snapshot.exit.message
    else:
        return None
    return SupervisionAction(
        id=names.fit(f"barrier-{turn:06d}-{binding.name}", MAX_ID),
        time=_timestamp(now),
        supervisor=binding.name,
        supervisor_uid=binding.uid,
        generation=binding.generation,
        action=action,
        source=BARRIER,
        reason=one_line(why or "the turn was not judged in time"),
        turn=turn,
        visit=snapshot.visit,
        state=DONE,
        landed_turn=turn,
    )


def settle(
    actions: Iterable[SupervisionAction], standing: Standing, view: SupervisionView, *, is_over: bool
) -> list[SupervisionAction]:
    """Return actions with the intents settled that are done, or that can no longer be done."""
    return [
        action.model_copy(update=_settled(action, standing, view, is_over)) if action.state == INTENDED else action
        for action in actions
    ]


def _settled(action: SupervisionAction, standing: Standing, view: SupervisionView, is_over: bool) -> dict[str, Any]:
    if action.action == "Steer":
        return _settled_steer(action, standing, view, is_over)
    if standing.mode == action.action:
        return {"state": DONE}
    if is_over or action.id in view.refused:
        return {"state": SUPERSEDED}
    if action.action == "Abort":
        return {}
    if standing.mode in ("Finish", "Abort"):
        return {"state": SUPERSEDED}
    if standing.generation == action.run_generation:
        return {}
    if action.id in view.unapplied:
        return {"run_generation": standing.generation}
    return {"state": SUPERSEDED}


def _settled_steer(
    action: SupervisionAction, standing: Standing, view: SupervisionView, is_over: bool
) -> dict[str, Any]:
    if action.id in standing.steers or action.id in standing.answered:
        return {"state": DONE}
    if standing.mode == "Abort":
        return {"state": DROPPED}
    return {"state": SUPERSEDED} if is_over or action.id in view.refused else {}


def choose(findings: Sequence[Finding]) -> list[Finding]:
    """Return what is done about the findings of one supervisor in one look: its most severe word, and its messages.

    Its rules share one message; what the judge has to say is one of its own.
    """
    modes = [finding for finding in findings if finding.action != "Steer"]
    rules = [finding for finding in findings if finding.action == "Steer" and finding.rule is not None]
    judge = [finding for finding in findings if finding.action == "Steer" and finding.rule is None]
    severest = max(modes, key=lambda finding: SEVERITY[finding.action], default=None)
    chosen = [(severest, len(modes))] if severest is not None else []
    chosen += [(group[0], len(group)) for group in (rules, judge) if group]
    return [finding if count == 1 else _among(finding, count) for finding, count in chosen]


def _among(finding: Finding, count: int) -> Finding:
    return replace(finding, reason=f"{finding.reason}; {count} rules of it fired at once")


def weigh(actions: Sequence[SupervisionAction], room: int) -> list[SupervisionAction]:
    """Return actions with those intents given up that a more severe one outweighs.

    Abort drops everything else. A Steer is delivered beside a Pause, as far as there is room for its message and for
    its record.
    """
    intents = [action for action in actions if action.state == INTENDED]
    word = "Abort" if any(action.action == "Abort" for action in intents) else "Pause"
    modes = [action for action in intents if action.action == word][:MAX_MODES]
    room = 0 if word == "Abort" else min(room, MAX_ACTIONS - len(modes))
    steers = [action for action in intents if action.action == "Steer"][: max(0, room)]
    kept = {id(action) for action in (*modes, *steers)}
    return [_given_up(action) if action.state == INTENDED and id(action) not in kept else action for action in actions]


def _given_up(action: SupervisionAction) -> SupervisionAction:
    return action.model_copy(update={"state": DROPPED if action.action == "Steer" else SUPERSEDED})


def land(actions: Iterable[SupervisionAction], snapshot: Snapshot | None) -> list[SupervisionAction]:
    """Return actions with the turn at which the runner says that each landed."""
    landed = []
    for action in actions:
        turn = _landed_turn(action, snapshot)
        landed.append(action if turn is None else action.model_copy(update={"landed_turn": turn}))
    return landed


def _landed_turn(action: SupervisionAction, snapshot: Snapshot | None) -> int | None:
    """Return the turn of a landing that is news."""
    if snapshot is None or action.state != DONE or action.landed_turn is not None:
        return None
    if action.action == "Steer":
        landing = snapshot.control.steer.get(action.id)
        return landing.turn if landing is not None and landing.state == "Landed" else None
    mode = snapshot.control.mode
    return mode.turn if mode.value == action.action and mode.turn >= action.turn else None


def trim(actions: Sequence[SupervisionAction]) -> list[SupervisionAction]:
    """Return the newest actions; an intent is never left out."""
    excess = len(actions) - MAX_ACTIONS
    kept = []
    for action in actions:
        if excess > 0 and action.state != INTENDED:
            excess -= 1
        else:
            kept.append(action)
    return kept


def build_directive(
    intents: Sequence[SupervisionAction], standing: Standing, records: Collection[SupervisorRecord]
) -> Directive | None:
    """Return the patch that carries out intents that stand in the record; None where there are none."""
    if not intents:
        return None
    control: dict[str, Any] = {}
    modes = [action for action in intents if action.action != "Steer"]
    if modes:
        severest = max(modes, key=lambda action: SEVERITY[action.action])
        # `by` is null since it may still name the person of an earlier directive.
        control = {"mode": severest.action, "reason": _because(severest), "by": None}
    steers = [action for action in intents if action.action == "Steer"]
    if steers:
        texts = {record.name: str(record.spec.get("steerMessage") or "") for record in records}
        added = {action.id: {"message": _message(action, texts)} for action in steers}
        control["steer"] = {**dict.fromkeys(sorted(standing.prunable)), **added}
    return Directive({"control": control}, tuple(action.id for action in intents))


def _because(action: SupervisionAction) -> str:
    return one_line(f"supervisor {action.supervisor} ({action.source}): {action.reason}")


def _message(action: SupervisionAction, texts: Mapping[str, str]) -> str:
    if action.source == JUDGE:
        return action.reason
    return texts.get(action.supervisor) or STEER_MESSAGE
