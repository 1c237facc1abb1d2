"""Every word of the engine's closed sets is shown by a golden run: a new one needs a script."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from golden.script import Script
from golden.test_transcripts import SCRIPTS, played
from pilothouse_api.signals import DEFAULT, RESERVED_EXITS, UNROUTED_REASON
from pilothouse_api.structs import Step
from pilothouse_engine.attempt import SettleCause
from pilothouse_engine.facts import (
    FACTS,
    CallCode,
    CallFinished,
    Cause,
    Fact,
    GateName,
    JudgeAnswered,
    Level,
    ModeAnswered,
    ModelFailed,
    ModelStarted,
    NoteAdded,
    ParkBegan,
    PolicyJudged,
    Purpose,
    ReplyReceived,
    RunEnded,
    StepEntered,
    StepFinished,
    TextJudged,
)
from pilothouse_engine.ports import FailureKind
from pilothouse_engine.run import Released

pytestmark = pytest.mark.slow  # plays every script once more, in another process than its own tests

ENDINGS = {None, "Interrupted", "Length", "StepLimit"}
PARKS = {"Paused", "Stopped", "ControlLost", "AwaitingApproval", "AwaitingChild", "Barrier", "JournalLost", "StoreLost"}
REASONS = {
    "BarrierTimeout",
    "Complete",
    "FinishedEarly",
    "UnroutedSignal",
    "StepVisitLimit",
    "JournalLost",
    "PauseDeadline",
    *UNROUTED_REASON.values(),
    *get_args(SettleCause),
}
LANDINGS = {"Landed", "NotLanded", "Superseded", "NotPending", "Expired", "Withdrawn"}

WORDS: dict[str, set[Any]] = {
    "cause": set(get_args(Cause)),
    "code": {None, *get_args(CallCode)},
    "ending": ENDINGS,
    "gate": set(get_args(GateName)),
    "exit": {DEFAULT, *RESERVED_EXITS},
    "fact": set(FACTS),
    "failure": set(get_args(FailureKind)),
    "judged": {"Passed", "Refused"},
    "kind": set(get_args(Step.__annotations__["kind"])),
    "landing": LANDINGS,
    "level": set(get_args(Level)),
    "mode": {"Run", "Pause", "Finish", "Abort"},
    "note": set(get_args(get_type_hints(NoteAdded)["note"])),
    "park": PARKS,
    "purpose": set(get_args(Purpose)),
    "reason": REASONS,
    "said": set(get_args(get_type_hints(JudgeAnswered)["said"])),
    "verdict": {"Allow", "Deny", "RequireApproval"},
}


OPEN = {"cause", "exit"}
"""An executor has causes of its own, and an author outcomes."""


def words_of(script: Script, fact: Fact) -> Iterator[tuple[str, Any]]:
    """The words that a fact shows."""
    yield "fact", type(fact).__name__
    match fact:
        case CallFinished():
            yield "code", fact.code
            yield "cause", fact.fatal
            yield "cause", fact.error_type
        case StepFinished():
            yield "exit", fact.signal
            yield "cause", fact.error_type
            yield "ending", fact.turn_ending
        case RunEnded():
            yield "reason", fact.reason
            yield "cause", fact.error_type
        case ModelStarted():
            yield "purpose", fact.purpose
        case ModelFailed():
            yield "failure", fact.kind
        case ReplyReceived():
            yield "level", fact.level
        case NoteAdded():
            yield "note", fact.note
        case ParkBegan():
            yield "park", fact.reason
        case StepEntered():
            yield "kind", fact.kind
        case PolicyJudged():
            yield "verdict", fact.verdict
        case JudgeAnswered():
            yield "said", fact.said
        case TextJudged():
            yield "gate", fact.gate
            yield "judged", fact.verdict
        case ModeAnswered():
            yield "mode", fact.mode
        case _:
            pass
    if hasattr(fact, "state"):
        yield "landing", fact.state


def all_words() -> set[tuple[str, Any]]:
    """The words that all golden runs show together."""
    shown: set[tuple[str, Any]] = set()
    for path in SCRIPTS:
        stage, facts = played(path)
        for fact in facts:
            shown.update(words_of(stage.script, fact))
        shown.update(("park", snapshot.parked.reason) for snapshot in stage.snapshots if snapshot.parked is not None)
        shown.update(("park", end.parked.reason) for end in stage.ends if isinstance(end, Released))
    return shown


@pytest.mark.parametrize("kind", WORDS)
def test_a_golden_run_shows_every(kind: str) -> None:
    shown = {word for of, word in all_words() if of == kind}
    assert kind in OPEN or shown <= WORDS[kind], "a word that this test does not know"
    assert WORDS[kind] - shown == set()
