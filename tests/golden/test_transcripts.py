"""Golden runs: one short script for each way in which a run can go, recorded and reviewed as a diff.

`pytest tests/golden --update-golden` writes the recordings anew.
"""

import asyncio
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest

from golden.recording import record
from golden.script import UID, read_script
from golden.stage import Checkpoint, Stage
from pilothouse_api.signals import DEFAULT, RESERVED_EXITS
from pilothouse_engine.facts import (
    TOOLS_OFF,
    CallFinished,
    CallStarted,
    Fact,
    ModelStarted,
    PromptOpened,
    ReplyReceived,
    StepEntered,
    StepFinished,
)
from pilothouse_engine.frames import fold
from pilothouse_engine.ports import SessionKey, StoredSession
from pilothouse_engine.run import Finished
from pilothouse_engine.sessions.records import decode_conversation
from support.golden import Golden

HERE = Path(__file__).parent / "transcripts"
SCRIPTS = sorted(HERE.rglob("*.yaml"))


def name_of(path: Path) -> str:
    return str(path.relative_to(HERE).with_suffix(""))


each_script = pytest.mark.parametrize("path", SCRIPTS, ids=name_of)


@cache
def played(path: Path) -> tuple[Stage, list[Fact]]:
    """The run of a script, played once for all tests."""

    async def play() -> tuple[Stage, list[Fact]]:
        stage = Stage.of(read_script(path))
        await stage.play()
        return stage, await stage.facts()

    return asyncio.run(play())


@each_script
def test_the_run_is_the_recorded_one(path: Path, golden: Golden) -> None:
    stage, facts = played(path)
    golden.check(path.with_suffix(".txt"), record(stage, facts))


def test_every_recording_has_its_script() -> None:
    assert {path.with_suffix(".yaml") for path in HERE.rglob("*.txt")} == set(SCRIPTS)


@each_script
def test_every_call_has_one_result_and_every_exit_is_of_the_closed_set(path: Path) -> None:
    stage, facts = played(path)
    check_exits(stage, facts)
    check_results(facts, is_ended=isinstance(stage.ends[-1], Finished))


@each_script
def test_the_journal_folds_to_the_state_of_the_run_that_wrote_it(path: Path) -> None:
    stage, _ = played(path)
    if not isinstance(stage.ends[-1], Finished) or stage.script.journal_was_cut:
        pytest.skip("the last attempt may not write what it knows")
    assert stage.live is not None
    folded = fold(asyncio.run(_entries(stage)), stage.plan.input)
    folded.context_json(), stage.live.context_json()  # a text that either may have made by now
    assert folded == stage.live


@each_script
def test_every_snapshot_is_under_its_cap(path: Path) -> None:
    stage, _ = played(path)
    sizes = [len(msgspec.json.encode(snapshot)) for snapshot in stage.snapshots]
    assert max(sizes, default=0) <= stage.settings.max_snapshot_bytes


@each_script
def test_a_run_that_is_cut_at_any_append_goes_on_to_the_same_end(path: Path) -> None:
    """An append is atomic: these are all the journals that a crash can leave."""
    whole, _ = played(path)
    last = whole.ends[-1]
    if not isinstance(last, Finished):
        pytest.skip("the run has no end of its own")
    for at in whole.checkpoints:
        stage, facts = asyncio.run(_resume(whole, at))
        end = stage.ends[-1]
        assert isinstance(end, Finished), at
        check_results(facts)
        check_exits(stage, facts)
        check_kept_once(stage, facts)
        if not whole.script.may_end_otherwise:
            assert (end.exit.signal, end.exit.reason) == (last.exit.signal, last.exit.reason), at


@each_script
def test_what_is_hidden_from_people_is_in_no_snapshot_and_no_frame(path: Path) -> None:
    stage, _ = played(path)
    shown = [repr(snapshot) for snapshot in stage.snapshots] + [str(frame) for frame in stage.sink.frames]
    for word in stage.script.hidden:
        assert not any(word in text for text in shown), word


async def _entries(stage: Stage) -> list[dict[str, object]]:
    return [dict(entry) for entry in await stage.journal.read()]


async def _resume(whole: Stage, at: Checkpoint) -> tuple[Stage, list[Fact]]:
    stage = whole.resumed(at)
    await stage.play()
    return stage, await stage.facts()


def check_results(facts: list[Fact], *, is_ended: bool = True) -> None:
    """Every call that was asked for, or that a step of the graph is, has exactly one result once the run has ended."""
    asked: set[str] = set()
    purpose = kind = ""
    for fact in facts:
        if isinstance(fact, StepEntered):
            kind = fact.kind
        elif isinstance(fact, CallFinished) and kind != "Agent":
            asked.add(fact.id)
        elif isinstance(fact, ModelStarted):
            purpose = fact.purpose
        elif isinstance(fact, ReplyReceived) and purpose not in TOOLS_OFF:
            asked |= {call.id for call in fact.calls}
        elif isinstance(fact, CallStarted):
            asked.add(fact.id)
    finished = Counter(fact.id for fact in facts if isinstance(fact, CallFinished))
    assert finished <= Counter(asked)
    assert not is_ended or finished == Counter(asked)


def check_kept_once(stage: Stage, facts: list[Fact]) -> None:
    """What a run of a session has said stands once in the conversation, behind all others."""
    if stage.script.session is None or stage.script.damaged:
        return
    stored = stage.sessions._stored.get(SessionKey("ns", stage.script.session, "work"), StoredSession())
    past = [f"past-{number}" for number in range(len(stage.script.past))]
    has_said = any(isinstance(fact, PromptOpened) for fact in facts)
    assert [run.uid for run in decode_conversation(stored.content).runs] == past + [UID] * has_said


def check_exits(stage: Stage, facts: list[Fact]) -> None:
    """Every visit of an agent ends on an outcome of its author's, on default, or on a reserved exit."""
    steps = {step.id: step for step in stage.plan.spec.steps}
    names = [fact.step for fact in facts if isinstance(fact, StepEntered)]
    for name, fact in zip(names, [fact for fact in facts if isinstance(fact, StepFinished)], strict=False):
        assert fact.error_type is None or fact.error_message, "what went wrong is said"
        if steps[name].kind == "Agent":
            own = stage.plan.agent_of(steps[name]).outcome.enum
            assert fact.signal in RESERVED_EXITS | set(own if own is not None else [DEFAULT])
