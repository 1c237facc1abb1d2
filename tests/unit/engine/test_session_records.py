"""What is kept of a conversation, and what a run is given of it, whatever was said (engine.md §11)."""

from hypothesis import given
from hypothesis import strategies as st

from pilothouse_engine.facts import PastTask
from pilothouse_engine.ports import Message, RequestedCall
from pilothouse_engine.sessions.records import (
    MAX_TASKS,
    Conversation,
    PastRun,
    Said,
    add_run,
    build_history,
    decode_conversation,
    encode_conversation,
)

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


tasks = st.lists(st.builds(PastTask, texts, texts, texts, st.floats(0, 1e9)), max_size=4).map(tuple)


@given(runs, tasks)
def test_what_is_kept_comes_back_as_it_was(past: tuple[PastRun, ...], open_tasks: tuple[PastTask, ...]) -> None:
    conversation = Conversation(past, open_tasks)
    assert decode_conversation(encode_conversation(conversation)) == conversation


@given(runs, st.integers(1, 12))
def test_a_run_is_added_once_and_the_newest_messages_are_those_of_all_runs(
    past: tuple[PastRun, ...], most: int
) -> None:
    kept = Conversation()
    for run in past:
        added = add_run(kept, run.uid, Said(run.messages), most)
        assert added is not None
        kept = added
        assert add_run(kept, run.uid, Said(run.messages), most) is None
    assert [run.uid for run in kept.runs] == [run.uid for run in past]
    assert all(len(run.messages) <= most for run in kept.runs)


def test_a_task_stays_until_a_run_has_told_its_end_and_the_newest_are_kept() -> None:
    one, two = PastTask("r1", "t1-0-aa", "helper", 1.0), PastTask("r1", "t1-1-bb", "helper", 2.0)
    kept = add_run(Conversation(), "u1", Said(opened=(one, two)), 10)
    assert kept is not None and kept.tasks == (one, two)
    kept = add_run(kept, "u2", Said(opened=(PastTask("r2", "t1-0-aa", "helper", 3.0),)), 10)
    assert kept is not None
    kept = add_run(kept, "u3", Said(told=frozenset({("r1", "t1-0-aa")})), 10)
    assert kept is not None and [(task.run, task.call) for task in kept.tasks] == [("r1", "t1-1-bb"), ("r2", "t1-0-aa")]

    many = tuple(PastTask("r4", f"t{number}-0-aa", "helper", 4.0) for number in range(MAX_TASKS + 1))
    kept = add_run(kept, "u4", Said(opened=many), 10)
    assert kept is not None and kept.tasks == many[1:]
