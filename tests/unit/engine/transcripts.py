"""Transcripts of visits at random: what a strategy draws is played as facts into the state, as a journal would."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from pilothouse_engine.facts import (
    AskedCall,
    CallFinished,
    Fact,
    ModelStarted,
    NoteAdded,
    PromptMessage,
    PromptOpened,
    ReplyReceived,
    SteerAnswered,
    StepEntered,
)
from pilothouse_engine.results import READ_TOOL_RESULT
from pilothouse_engine.state import RunState, Visit

ALPHABET = "abc é漢🙂\n"

sizes = st.one_of(
    st.integers(0, 300), st.sampled_from([399, 400, 401, 900, 1000, 2200, 2300, 5000, 5001, 9000, 20_000])
)


@st.composite
def some_text(draw: st.DrawFn) -> str:
    """A text of a drawn length, from few characters of one to four bytes."""
    size = draw(sizes)
    pattern = draw(st.text(ALPHABET, min_size=1, max_size=8))
    return (pattern * (size // len(pattern) + 1))[:size]


turns = st.one_of(
    st.tuples(st.just("calls"), some_text(), st.lists(st.tuples(some_text(), st.booleans()), min_size=1, max_size=5)),
    st.tuples(st.just("text"), some_text().filter(bool)),
    st.tuples(st.just("steer"), some_text()),
)


@st.composite
def opened_visits(draw: st.DrawFn, most_turns: int = 25) -> Visit:
    """A visit at a turn boundary: an opening, then turns with calls, continued texts, and steers between them."""
    opening = [PromptMessage("user", draw(some_text()))]
    if draw(st.booleans()):
        opening.insert(0, PromptMessage("system", draw(some_text())))
    if draw(st.booleans()):
        opening.append(PromptMessage("user", draw(some_text())))
    played = draw(st.lists(turns, max_size=most_turns))
    return play_visit(opening, played, cut_at=draw(st.sampled_from([200, 1000, 8000, 200_000])))


def play_visit(opening: Sequence[PromptMessage], played: Sequence[Any], cut_at: int = 8000) -> Visit:
    state = RunState()
    state.apply(StepEntered(1.0, "work", 1, "Agent"))
    state.apply(PromptOpened(1.0, tuple(opening)))
    for number, item in enumerate(played):
        play_turn(state, item, number, cut_at)
    visit = state.visit
    assert visit is not None
    return visit


def play_turn(state: RunState, item: Any, number: int, cut_at: int = 8000, **reply: Any) -> None:
    """Play one turn: ("steer", text), ("text", text) with a note that continues it, or ("calls", text, results)."""
    for fact in _facts_of(state, item, number, cut_at, reply):
        state.apply(fact)


def _facts_of(state: RunState, item: Any, number: int, cut_at: int, reply: dict[str, Any]) -> list[Fact]:
    if item[0] == "steer":
        return [SteerAnswered(1.0, state.next_turn, f"s{number}", "Landed", item[1])]
    turn = state.next_turn
    started = ModelStarted(1.0, turn, turn, "Regular", 0, 1, 0, 0, 0, None, reply.get("level", "full"))
    if item[0] == "text":
        return [started, ReplyReceived(1.0, item[1], **reply), NoteAdded(1.0, "Continue", "go on")]
    names = [READ_TOOL_RESULT if is_slice else "lookup" for _, is_slice in item[2]]
    asked = tuple(
        AskedCall(f"t{turn}-{index}-00000000", f"p{turn}-{index}", name, "{}", f"{turn}-{index}")
        for index, name in enumerate(names)
    )
    finished = [
        CallFinished(1.0, call.id, content, cut_at=0 if is_slice else cut_at)
        for call, (content, is_slice) in zip(asked, item[2], strict=True)
    ]
    return [started, ReplyReceived(1.0, item[1], asked, **reply), *finished]
