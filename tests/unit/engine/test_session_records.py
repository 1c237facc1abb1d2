"""What is kept of a conversation, and what a run is given of it, whatever was said (engine.md §11)."""

from hypothesis import given
from hypothesis import strategies as st

from pilothouse_engine.ports import Message, RequestedCall
from pilothouse_engine.sessions.records import PastRun, add_run, build_history, decode_runs, encode_runs

texts = st.text(max_size=8)
calls = st.builds(RequestedCall, st.sampled_from(["", "a", "b", "h00000001"]), texts, texts)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    texts,
    st.lists(calls, max_size=3).map(tuple),
    st.sampled_from(["", "a", "b"]),
    texts,
).map(lambda one: one if one.role == "assistant" else Message(one.role, one.text, (), one.provider_id, one.name))
runs = st.lists(st.lists(messages, max_size=8).map(tuple), max_size=6).map(
    lambda said: tuple(PastRun(f"u{number}", one) for number, one in enumerate(said))
)


@given(runs, st.integers(0, 12))
def test_whatever_was_said_a_history_is_bounded_and_no_call_is_without_its_result(
    past: tuple[PastRun, ...], most: int
) -> None:
    note, *history = build_history(past, most) or (None,)
    assert len(history) <= most
    assert (note is None) == (not history)
    asked: list[str] = []
    open_calls: list[str] = []
    for message in history:
        if message.role == "tool":
            assert message.provider_id == open_calls.pop(0)
            continue
        assert open_calls == []
        open_calls = [call.provider_id for call in message.calls]
        asked += open_calls
    assert open_calls == []
    assert len(set(asked)) == len(asked) and "" not in asked


@given(runs)
def test_what_is_kept_comes_back_as_it_was(past: tuple[PastRun, ...]) -> None:
    assert decode_runs(encode_runs(past)) == past


@given(runs, st.integers(1, 12))
def test_a_run_is_added_once_and_the_newest_messages_are_those_of_all_runs(
    past: tuple[PastRun, ...], most: int
) -> None:
    kept: tuple[PastRun, ...] = ()
    for run in past:
        added = add_run(kept, run, most)
        assert added is not None
        kept = added
        assert add_run(kept, run, most) is None
    assert [run.uid for run in kept] == [run.uid for run in past]
    assert all(len(run.messages) <= most for run in kept)
