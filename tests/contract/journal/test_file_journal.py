"""What the file journal does about torn writes, damage, and a disk that fails."""

import asyncio
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pilothouse_engine.ports import Fenced, JournalCorrupt, JournalUnavailable, RawEntry
from pilothouse_runner.adapters import file_journal
from pilothouse_runner.adapters.file_journal import FileJournal, read_entries

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "r1" / "journal.jsonl"


def entry(number: int) -> RawEntry:
    return {"fact": "noted", "number": number}


async def written(path: Path, batches: int = 3) -> bytes:
    """Write batches of two entries; return the file's bytes."""
    journal = FileJournal(path, durable=True)
    for batch in range(batches):
        await journal.append(1, 2 * batch, [entry(2 * batch), entry(2 * batch + 1)])
    journal.close()
    return path.read_bytes()


async def test_every_line_is_json_that_a_person_can_read(path: Path) -> None:
    data = await written(path)

    lines = [json.loads(line) for line in data.splitlines()]
    assert [(line["attempt"], line["seq"]) for line in lines] == [(1, 0), (1, 2), (1, 4)]
    assert lines[1]["entries"] == [entry(2), entry(3)]


async def test_a_tail_torn_at_any_byte_is_cut_and_the_run_goes_on(path: Path) -> None:
    data = await written(path)
    second_ends = data.index(b"\n", data.index(b"\n") + 1) + 1
    for end in range(second_ends, len(data)):
        path.write_bytes(data[:end])
        assert len(read_entries(path)) == 4
        journal = FileJournal(path, durable=True)
        assert len(await journal.read()) == 4
        await journal.append(2, 4, [entry(4), entry(5)])
        journal.close()
        assert [e["number"] for e in read_entries(path)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("damage", [b"\x00", b"~", b"\n"])
async def test_damage_before_the_last_line_is_corrupt_at_any_byte(path: Path, damage: bytes) -> None:
    data = await written(path)
    last_begins = data.rindex(b"\n", 0, len(data) - 1) + 1
    for position in range(0, last_begins, 7):
        if data[position : position + 1] == damage:
            continue
        path.write_bytes(data[:position] + damage + data[position + 1 :])
        with pytest.raises(JournalCorrupt, match=r"journal\.jsonl: batch \d"):
            await FileJournal(path, durable=True).read()


async def test_a_missing_batch_in_the_middle_is_corrupt(path: Path) -> None:
    data = await written(path)
    lines = data.splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])

    with pytest.raises(JournalCorrupt, match="begins with entry 4, entry 2 was expected"):
        await FileJournal(path, durable=True).read()


async def test_a_file_that_something_has_cut_under_a_live_run_is_corrupt(path: Path) -> None:
    journal = FileJournal(path, durable=True)
    await journal.append(1, 0, [entry(0)])
    os.truncate(path, 3)

    with pytest.raises(JournalCorrupt, match="something has cut it"):
        await journal.append(1, 1, [entry(1)])


async def test_a_viewer_reads_while_a_run_writes_and_changes_nothing(path: Path) -> None:
    data = await written(path)
    path.write_bytes(data + b'{"crc":"0')

    assert len(read_entries(path)) == 6
    assert path.read_bytes() == data + b'{"crc":"0'
    assert read_entries(path.with_name("absent")) == []


class FailingDisk:
    """Makes one call of `os` fail, after it has done `bytes_first` bytes of its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def fail(self, name: str, number: int, *, bytes_first: int = 0, times: int = 1) -> None:
        real: Callable[..., Any] = getattr(os, name)
        left = times

        def call(file: int, *arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                return real(file, *arguments)
            left -= 1
            if bytes_first:
                os.pwrite(file, bytes(arguments[0][:bytes_first]), os.fstat(file).st_size)
            raise OSError(number, os.strerror(number))

        self._monkeypatch.setattr(os, name, call)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


@pytest.mark.parametrize(
    ("call", "number", "bytes_first"),
    [("write", errno.ENOSPC, 0), ("write", errno.ENOSPC, 20), ("write", errno.EIO, 5), ("fdatasync", errno.EIO, 0)],
)
async def test_a_failed_append_leaves_nothing_and_can_be_tried_again(
    path: Path, disk: FailingDisk, call: str, number: int, bytes_first: int
) -> None:
    journal = FileJournal(path, durable=True)
    await journal.append(1, 0, [entry(0)])
    before = path.read_bytes()

    disk.fail(call, number, bytes_first=bytes_first)
    with pytest.raises(JournalUnavailable, match=f"cannot write .*: {os.strerror(number)}"):
        await journal.append(1, 1, [entry(1)])
    assert path.read_bytes() == before

    await journal.append(1, 1, [entry(1)])
    assert [e["number"] for e in read_entries(path)] == [0, 1]


@pytest.mark.parametrize("bytes_first", [0, 30])
async def test_an_append_that_could_not_even_be_taken_back_is_looked_up_before_the_next(
    path: Path, disk: FailingDisk, bytes_first: int
) -> None:
    journal = FileJournal(path, durable=True)
    await journal.append(1, 0, [entry(0)])

    disk.fail("ftruncate", errno.EIO)
    if bytes_first:
        disk.fail("write", errno.EIO, bytes_first=bytes_first)
    else:
        disk.fail("fdatasync", errno.EIO)
    with pytest.raises(JournalUnavailable):
        await journal.append(1, 1, [entry(1)])
    await journal.append(1, 1, [entry(1)])

    assert [e["number"] for e in read_entries(path)] == [0, 1]


async def test_an_append_that_others_have_built_on_is_not_cut(path: Path, disk: FailingDisk) -> None:
    older, newer = FileJournal(path, durable=True), FileJournal(path, durable=True)
    await older.append(1, 0, [entry(0)])
    disk.fail("ftruncate", errno.EIO)
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(JournalUnavailable):
        await older.append(1, 1, [entry(1)])

    assert len(await newer.read()) == 2
    await newer.append(2, 2, [entry(2)])
    with pytest.raises(Fenced):
        await older.append(1, 1, [entry(1)])

    assert [e["number"] for e in read_entries(path)] == [0, 1, 2]


SMALL_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from pilothouse_engine.ports import JournalUnavailable
from pilothouse_runner.adapters.file_journal import FileJournal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
async def main():
    journal, seq = FileJournal(Path(sys.argv[1]), durable=True), 0
    try:
        while True:
            await journal.append(1, seq, [{"pad": "x" * 700}])
            seq += 1
    except JournalUnavailable as error:
        print(seq, error)
asyncio.run(main())
"""


def test_a_disk_that_is_full_leaves_whole_batches_only(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, str(path)], capture_output=True, text=True, check=True, timeout=200
    )

    count, message = done.stdout.split(" ", 1)
    assert message == f"cannot write {path}: File too large\n"
    assert len(read_entries(path)) == int(count) > 5
    assert path.read_bytes().endswith(b"\n")


async def test_a_lock_that_another_process_keeps_is_unavailable_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(path)
    monkeypatch.setattr(file_journal, "LOCK_WAIT_SECONDS", 0.05)
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(JournalUnavailable, match="another process holds the lock"):
            await FileJournal(path, durable=True).read()


async def test_a_cancelled_append_that_waits_for_the_lock_writes_nothing(path: Path) -> None:
    before = await written(path)
    journal = FileJournal(path, durable=True)
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        task = asyncio.create_task(journal.append(1, 6, [entry(6)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert path.read_bytes() == before
    await journal.append(1, 6, [entry(6)])


async def test_a_journal_that_is_moved_away_is_unavailable_until_it_is_back(path: Path) -> None:
    journal = FileJournal(path, durable=True)
    await journal.append(1, 0, [entry(0)])
    path.rename(path.with_name("elsewhere"))

    for _ in range(2):
        with pytest.raises(JournalUnavailable, match="was moved or deleted while its run was live: put it back"):
            await journal.append(1, 1, [entry(1)])
    path.with_name("elsewhere").rename(path)

    await journal.append(1, 1, [entry(1)])
    assert read_entries(path) == [entry(0), entry(1)]


async def test_a_folder_that_vanishes_is_unavailable_and_not_made_anew_with_an_empty_journal(path: Path) -> None:
    journal = FileJournal(path, durable=True)
    await journal.append(1, 0, [entry(0)])
    shutil.rmtree(path.parent)

    with pytest.raises(JournalUnavailable, match="put it back"):
        await journal.append(1, 1, [entry(1)])

    assert not path.parent.exists()


async def test_a_journal_that_is_restored_from_a_copy_goes_on_and_one_that_lacks_facts_does_not(path: Path) -> None:
    journal = FileJournal(path, durable=True)
    await journal.append(1, 0, [entry(0)])
    copy = path.read_bytes()
    path.unlink()
    path.write_bytes(copy)
    await journal.append(1, 1, [entry(1)])
    assert read_entries(path) == [entry(0), entry(1)]

    path.unlink()
    path.write_bytes(copy)
    with pytest.raises(Fenced, match="holds 1 entries, attempt 1 expects 2"):
        await journal.append(1, 2, [entry(2)])


async def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnavailable, match="File exists"):
        await FileJournal(tmp_path / "file" / "journal.jsonl", durable=True).read()


async def test_bytes_written_per_append_do_not_grow_with_the_journal(path: Path) -> None:
    sizes = []
    journal = FileJournal(path, durable=True)
    for seq in range(100, 300):
        await journal.append(1, seq - 100, [entry(seq)])
        sizes.append(path.stat().st_size)

    steps = [b - a for a, b in pairwise(sizes)]
    assert max(steps) - min(steps) <= 2  # the digits of seq
