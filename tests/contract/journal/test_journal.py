"""What every journal promises (engine.md §10)."""

import asyncio
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_engine.ports import Fenced, JournalUnavailable, RawEntry
from pilothouse_engine.testing.journal import MemoryJournal
from support.journals import Backend

pytestmark = pytest.mark.anyio


def read_all(backend: Backend) -> list[RawEntry]:
    async def read() -> list[RawEntry]:
        return list(await backend.open().read())

    return asyncio.run(read())


def entry(number: int) -> RawEntry:
    return {"fact": "noted", "number": number}


async def test_a_new_journal_is_empty(backend: Backend) -> None:
    assert list(await backend.open().read()) == []


async def test_entries_come_back_in_order_to_another_attempt(backend: Backend) -> None:
    journal = backend.open()
    await journal.read()
    await journal.append(1, 0, [entry(0), entry(1)])
    await journal.append(1, 2, [entry(2)])

    assert list(await backend.open().read()) == [entry(0), entry(1), entry(2)]


async def test_an_append_is_possible_without_reading_first(backend: Backend) -> None:
    await backend.open().append(1, 0, [entry(0)])
    await backend.open().append(2, 1, [entry(1)])

    assert len(await backend.open().read()) == 2


@pytest.mark.parametrize("expected", [0, 1, 3, 17])
async def test_a_wrong_sequence_is_fenced_and_leaves_nothing(backend: Backend, expected: int) -> None:
    journal = backend.open()
    await journal.append(1, 0, [entry(0), entry(1)])

    with pytest.raises(Fenced, match="holds 2 entries"):
        await journal.append(1, expected, [entry(9)])

    assert list(await journal.read()) == [entry(0), entry(1)]


async def test_an_older_attempt_is_fenced_once_a_newer_one_has_written(backend: Backend) -> None:
    older, newer = backend.open(), backend.open()
    await older.append(1, 0, [entry(0)])
    await newer.read()
    await newer.append(2, 1, [entry(1)])

    with pytest.raises(Fenced):
        await older.append(1, 1, [entry(8)])
    with pytest.raises(Fenced, match="attempt 2 has written"):
        await older.append(1, 2, [entry(9)])

    assert list(await newer.read()) == [entry(0), entry(1)]


async def test_of_two_writers_with_the_same_number_only_one_gets_each_place(backend: Backend) -> None:
    async def write(who: str) -> int:
        journal, written = backend.open(), 0
        for seq in range(40):
            try:
                await journal.append(1, seq, [{"who": who, "seq": seq}])
                written += 1
            except Fenced:
                pass
            await asyncio.sleep(0)
        return written

    counts = await asyncio.gather(write("a"), write("b"))

    entries = list(await backend.open().read())
    assert sum(counts) == 40
    assert [e["seq"] for e in entries] == list(range(40))


async def test_a_fact_cannot_be_changed_after_it_was_written(backend: Backend) -> None:
    journal = backend.open()
    fact = {"fact": "noted", "values": [1]}
    await journal.append(1, 0, [fact])
    fact["values"].append(2)  # type: ignore[attr-defined]

    assert list(await journal.read()) == [{"fact": "noted", "values": [1]}]


async def test_an_empty_batch_checks_the_fence_and_adds_nothing(backend: Backend) -> None:
    journal = backend.open()
    await journal.append(1, 0, [entry(0)])
    await journal.append(1, 1, [])
    with pytest.raises(Fenced):
        await journal.append(1, 0, [])

    assert len(await journal.read()) == 1


async def test_what_is_no_json_is_refused_and_leaves_nothing(backend: Backend) -> None:
    journal = backend.open()
    with pytest.raises(TypeError):
        await journal.append(1, 0, [entry(0), {"when": object()}])

    assert list(await journal.read()) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
async def test_any_json_value_survives(backend: Backend, value: object) -> None:
    journal = backend.open()
    seq = len(await journal.read())
    await journal.append(1, seq, [{"value": value}, {"lone": "\ud800", "break": "a\nb\u2028\x00"}])

    assert list(await backend.open().read())[seq:] == [
        {"value": value},
        {"lone": "\ud800", "break": "a\nb\u2028\x00"},
    ]


APPENDS = """
import asyncio, sys
{opening}
async def main():
    seq = len(await journal.read())
    print("started", flush=True)
    for batch in range(100_000):
        entries = [{{"batch": batch, "part": part, "pad": "x" * {pad}}} for part in range(3)]
        await journal.append({attempt}, seq, entries)
        seq += 3
        print(seq, flush=True)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("pad", [10, 300_000])
def test_a_killed_writer_leaves_whole_batches_and_every_acknowledged_one(process_backend: Backend, pad: int) -> None:
    acknowledged = 0
    for attempt in range(1, 6):
        code = APPENDS.format(opening=process_backend.opening_code(), attempt=attempt, pad=pad)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        for _ in range(attempt * 3):
            acknowledged = int(child.stdout.readline())
        child.kill()  # in the middle of whatever it is doing
        acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
        child.wait()

        entries = read_all(process_backend)
        assert len(entries) >= acknowledged
        assert len(entries) % 3 == 0
        assert [e["part"] for e in entries] == [0, 1, 2] * (len(entries) // 3)

    async def go_on() -> None:
        await process_backend.open().append(6, len(entries), [entry(0)])

    asyncio.run(go_on())
    assert len(read_all(process_backend)) == len(entries) + 1


CONTENDS = """
import asyncio, sys
{opening}
from pilothouse_engine.ports import Fenced
async def main():
    sys.stdin.readline()
    written = 0
    for seq in range(60):
        try:
            await journal.append(1, seq, [{{"who": {who}, "seq": seq}}])
            written += 1
        except Fenced:
            pass
    print(written)
asyncio.run(main())
"""


@pytest.mark.slow
def test_of_two_processes_only_one_gets_each_place(process_backend: Backend) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDS.format(opening=process_backend.opening_code(), who=who)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in range(2)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    counts = [int(child.communicate()[0]) for child in children]

    entries = read_all(process_backend)
    assert [e["seq"] for e in entries] == list(range(60))
    assert [sum(e["who"] == who for e in entries) for who in range(2)] == counts


async def test_the_memory_journal_fails_when_it_is_told_to() -> None:
    journal = MemoryJournal()
    journal.fail_next()
    with pytest.raises(JournalUnavailable):
        await journal.append(1, 0, [entry(0)])
    await journal.append(1, 0, [entry(0)])

    assert len(await journal.read()) == 1
