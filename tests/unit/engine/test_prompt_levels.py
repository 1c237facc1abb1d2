"""What of a transcript each level sends (engine.md §6): promises on transcripts at random, numbers in a table."""

import copy
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from pilothouse_engine.facts import Level, PromptMessage
from pilothouse_engine.ports import Message
from pilothouse_engine.prompts.budget import CUT_OVERHEAD
from pilothouse_engine.prompts.levels import CUTS, LEVELS, Cut, Sent, newest_turn, sent_at
from pilothouse_engine.results import READ_TOOL_RESULT, pointer
from pilothouse_engine.state import Visit, bytes_of
from unit.engine.hostile import examples
from unit.engine.transcripts import opened_visits, play_visit

slow_data = settings(
    max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def sent(visit: Visit, level: Level) -> list[Sent]:
    return sent_at(visit, visit.messages, level)


def roles(items: list[Sent]) -> str:
    return "".join(item.message.role[0] for item in items)


# ---------------------------------------------------------------- promises


@slow_data
@given(opened_visits())
def test_every_level_keeps_its_promises(visit: Visit) -> None:
    before = copy.deepcopy(visit)
    for level in LEVELS:
        items = sent(visit, level)
        assert [item.index for item in items] == sorted({item.index for item in items})
        assert [item.message for item in items if not item.is_cut] == [
            visit.messages[item.index] for item in items if not item.is_cut
        ]
        check_never_cut(visit, items)
        check_calls_and_results_stay_together(visit, items)
        if level != "full":
            check_cuts(visit, items, CUTS[level])
            check_newest_earlier_messages_are_kept(visit, items, CUTS[level].messages)
    assert visit == before


def check_never_cut(visit: Visit, items: list[Sent]) -> None:
    newest = newest_turn(visit)
    whole = [
        index
        for index, message in enumerate(visit.messages)
        if index < visit.opening or message.role == "system" or (index >= newest and message.role != "tool")
    ]
    kept = {item.index: item for item in items}
    assert all(index in kept and not kept[index].is_cut for index in whole)
    assert all(index in kept for index in range(newest, len(visit.messages)))


def check_calls_and_results_stay_together(visit: Visit, items: list[Sent]) -> None:
    open_calls: list[str] = []
    for item in items:
        message = item.message
        if message.role == "tool":
            assert message.provider_id == open_calls.pop(0)
        else:
            assert open_calls == [] or message.role == "system"
            open_calls += [call.provider_id for call in message.calls]
    assert open_calls == []


def check_cuts(visit: Visit, items: list[Sent], cut: Cut) -> None:
    newest = newest_turn(visit)
    for item in items:
        message, whole = item.message, visit.messages[item.index]
        if message.role == "tool":
            is_whole_slice = message.name == READ_TOOL_RESULT and not cut.cuts_slices
            assert item.is_cut == (len(whole.text) > cut.result_chars and not is_whole_slice)
            if item.is_cut:
                call_id = visit.result_ids[item.index]
                assert message.text.endswith(pointer(call_id, len(visit.results[call_id])))
                assert len(message.text) <= cut.result_chars
        elif visit.opening <= item.index < newest and message.role != "system":
            assert item.is_cut == (len(whole.text) > cut.text_chars)
            assert len(message.text) <= cut.text_chars
        assert (message.calls, message.provider_id, message.raw) == (whole.calls, whole.provider_id, whole.raw)


def check_newest_earlier_messages_are_kept(visit: Visit, items: list[Sent], most: int) -> None:
    newest = newest_turn(visit)
    earlier = [i for i in range(visit.opening, newest) if visit.messages[i].role != "system"]
    kept = [item.index for item in items if visit.opening <= item.index < newest and item.message.role != "system"]
    assert kept == earlier[len(earlier) - len(kept) :]
    assert len(kept) <= most
    left_out = earlier[: len(earlier) - len(kept)]
    if left_out:  # the next older one would be one too many, with what belongs to it
        unit = next(n for n, i in enumerate(reversed(left_out), 1) if visit.messages[i].role != "tool")
        assert len(kept) + unit > most


@slow_data
@given(opened_visits())
def test_a_tighter_level_never_sends_more_of_a_message(visit: Visit) -> None:
    for looser, tighter in pairwise(LEVELS):
        more = {item.index: item.message for item in sent(visit, looser)}
        for item in sent(visit, tighter):
            check_is_no_more(item, more[item.index])


def check_is_no_more(item: Sent, before: Message) -> None:
    assert len(item.message.text) <= len(before.text)
    assert bytes_of(item.message) <= bytes_of(before) + CUT_OVERHEAD * item.is_cut


@slow_data
@given(opened_visits())
def test_what_a_level_leaves_out_stays_left_out_as_the_transcript_grows(visit: Visit) -> None:
    """What bounds the tokens of the next prompt by the count of the one before."""
    grown = copy.deepcopy(visit)
    grown.messages = [*visit.messages, Message("assistant", "next"), Message("user", "go on")]
    for level in LEVELS:
        before = {item.index: item.message for item in sent(visit, level)}
        for item in sent(grown, level):
            if item.index < len(visit.messages):
                check_is_no_more(item, before[item.index])


def test_full_is_the_transcript_as_it_is() -> None:
    visit = play_visit([PromptMessage("user", "u" * 99_999)], [("calls", "t" * 9000, [("r" * 9000, False)])])
    assert [item.message for item in sent(visit, "full")] == visit.messages


# ---------------------------------------------------------------- numbers


OPENING = [PromptMessage("system", "s" * 9000), PromptMessage("user", "u" * 9000), PromptMessage("user", "m" * 9000)]
LONG_TURN = ("calls", "t" * 9000, [("r" * 30_000, False)])


@pytest.mark.parametrize(
    ("level", "messages", "result_chars", "text_chars"),
    [("default", 28, 2200, 5000), ("aggressive", 12, 900, 1800), ("minimal", 4, 400, 900)],
)
def test_levels_have_the_numbers_of_the_design(level: Level, messages: int, result_chars: int, text_chars: int) -> None:
    visit = play_visit(OPENING, [LONG_TURN] * 20)
    items = sent(visit, level)
    assert roles(items) == "suu" + "at" * (messages // 2) + "at"
    earlier, newest = items[3:-2], items[-2:]
    assert {len(item.message.text) for item in earlier if item.message.role == "assistant"} == {text_chars}
    assert {len(item.message.text) for item in earlier if item.message.role == "tool"} == {result_chars}
    assert [len(item.message.text) for item in newest] == [9000, result_chars]
    assert [len(item.message.text) for item in items[:3]] == [9000] * 3


@pytest.mark.parametrize(
    ("turn_sizes", "want"),
    [
        ([1, 1, 1], [1, 2]),  # six messages do not fit into four: the oldest turn goes
        ([1, 3], [1]),  # a reply and its three results are four
        ([1, 4], []),  # five are too many, and nothing older stands in for them
        ([3, 1], [1]),  # what does not fit beside the newer ones goes whole
    ],
)
def test_a_turn_that_does_not_fit_whole_is_left_out_whole(turn_sizes: list[int], want: list[int]) -> None:
    played = [("calls", f"turn {n}", [("ok", False)] * size) for n, size in enumerate(turn_sizes)]
    items = sent(play_visit(OPENING[1:2], [*played, ("calls", "newest", [("ok", False)])]), "minimal")
    kept = [item.message.text for item in items if item.message.role == "assistant"]
    assert kept == [*(f"turn {n}" for n in want), "newest"]


def test_steers_stand_where_they_landed_and_are_not_counted() -> None:
    turn = ("calls", "t", [("ok", False)])
    steer = ("steer", "x" * 9000)
    visit = play_visit(OPENING[:2], [turn, steer, turn, steer, turn, steer, turn, steer])
    assert roles(sent(visit, "minimal")) == "su" + "s" + "at" + "s" + "at" + "s" + "at" + "s"


@pytest.mark.parametrize(("level", "want"), [("default", 8000), ("aggressive", 8000), ("minimal", 400)])
def test_a_slice_that_was_asked_for_is_whole_but_at_minimal(level: Level, want: int) -> None:
    visit = play_visit(OPENING[1:2], [("calls", "", [("r" * 8000, True)]), ("text", "t")])
    assert [len(item.message.text) for item in sent(visit, level) if item.message.role == "tool"] == [want]


def test_a_result_that_is_cut_twice_keeps_its_head_its_tail_and_one_pointer() -> None:
    content = "HEAD" + "x" * 30_000 + "TAIL"
    visit = play_visit(OPENING[1:2], [("calls", "", [(content, False)])], cut_at=8000)
    text = sent(visit, "minimal")[-1].message.text
    assert text.startswith("HEADx")
    assert "xTAIL\n[cut: t1-0-00000000 has 30008 characters; read the rest with read_tool_result" in text
    assert text.count("[cut:") == 1
    assert len(text) == 400


def test_a_text_that_a_gate_has_put_around_a_result_is_only_shortened() -> None:
    visit = play_visit(OPENING[1:2], [("calls", "", [("y" * 3000, False)])])
    shown = visit.messages[-1]
    visit.messages[-1] = Message("tool", f"<flagged>\n{'█' * 3000}\n</flagged>", provider_id=shown.provider_id)
    text = sent(visit, "default")[-1].message.text
    assert "y" not in text.split("[cut:")[0]
    assert text.startswith("<flagged>\n█")
    assert "█\n</flagged>\n[cut: t1-0-00000000 has 3000 characters" in text
