"""The journal as a file: one JSON line a batch, made durable before `append` returns.

A batch is one line (`batches`), so it is there whole or not at all: a torn last line is cut by the next writer. Each
append takes the file's lock, sees what others have appended meanwhile, and is refused when the journal went on without
it: two processes on one file cannot both advance a run, however they came to be.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pilothouse_api.batches import Batch, decode_batch, encode_batch
from pilothouse_engine.ports import Fenced, JournalCorrupt, JournalUnavailable, RawEntry
from pilothouse_engine.values import Value

LOCK_WAIT_SECONDS = 5.0
"""How long an append waits for another process's append; it holds the lock for one disk flush."""

_LOCK_POLL_SECONDS = 0.005


class Scan(Value):
    """The whole batches of a piece of the file, and how many of its bytes they take; the rest is a torn tail."""

    batches: tuple[Batch, ...]
    length: int


def scan_batches(data: bytes, first_seq: int = 0) -> Scan:
    """Return the batches of a file's bytes; raises JournalCorrupt when anything but the last line is damaged.

    The last line may be torn, or damaged where a machine lost power while it was written: it was never acknowledged
    then, and is left out. A line that another follows was acknowledged.
    """
    batches: list[Batch] = []
    position, seq = 0, first_seq
    while (end := data.find(b"\n", position)) >= 0:
        batch = decode_batch(data[position:end])
        if batch is None or batch.seq != seq:
            if batch is None and end + 1 == len(data):
                break
            what = "is damaged" if batch is None else f"begins with entry {batch.seq}"
            raise JournalCorrupt(f"batch {len(batches) + 1} (byte {position}) {what}, entry {seq} was expected")
        batches.append(batch)
        seq += len(batch.entries)
        position = end + 1
    return Scan(tuple(batches), position)


def read_entries(path: Path) -> list[RawEntry]:
    """Return the entries of a journal that somebody else may be writing; an absent file has none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [entry for batch in scan_batches(data).batches for entry in batch.entries]


class FileJournal:
    """One run's journal in one file.

    `durable` says whether the file outlives the machine's pod (a laptop's disk, a PVC) or not (an emptyDir). Appends
    run on the caller's thread: the flush that they wait for is what the run waits for, and a cancelled task can
    never leave one half done.
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.durable = durable
        self._path = path
        self._file: int | None = None
        self._length = 0
        self._seq = 0
        self._newest_attempt = 0
        self._unsure: bytes | None = None

    async def read(self) -> Sequence[RawEntry]:
        """Return all entries, oldest first; a torn tail is cut, and what is returned is on disk."""
        await self._lock()
        with self._locked() as file:
            self._settle_unsure(file)
            self._length, self._seq, self._newest_attempt = 0, 0, 0
            batches = self._catch_up(file)
            # A predecessor may have died between its write and its flush: only what is on disk may be acted on.
            os.fdatasync(file)
        return [entry for batch in batches for entry in batch.entries]

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        """Add entries as one batch, on disk when this returns; raises Fenced, JournalUnavailable, JournalCorrupt."""
        line = encode_batch(Batch(attempt, expected_seq, tuple(entries))) + b"\n"
        await self._lock()
        with self._locked() as file:
            self._settle_unsure(file)
            self._catch_up(file)
            if attempt < self._newest_attempt:
                raise Fenced(f"attempt {self._newest_attempt} has written to {self._path}, this is attempt {attempt}")
            if expected_seq != self._seq:
                raise Fenced(f"{self._path} holds {self._seq} entries, attempt {attempt} expects {expected_seq}")
            if entries:
                self._write(file, line)
                self._length += len(line)
                self._seq += len(entries)
                self._newest_attempt = attempt

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def _lock(self) -> None:
        deadline = asyncio.get_running_loop().time() + LOCK_WAIT_SECONDS
        while True:
            try:
                file = self._open()
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_in_place(file):
                    return
                continue
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    raise JournalUnavailable(
                        f"another process holds the lock of {self._path} for {LOCK_WAIT_SECONDS:g} s"
                    ) from None
            except OSError as error:
                raise self._unavailable(error) from error
            await asyncio.sleep(_LOCK_POLL_SECONDS)

    def _is_in_place(self, file: int) -> bool:
        """Tell whether the open file is still the one at the path; else it is opened anew, if there is one."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(file)):
                return True
        except FileNotFoundError:
            if self._length:
                fcntl.flock(file, fcntl.LOCK_UN)
                what = "was moved or deleted while its run was live: put it back"
                raise JournalUnavailable(f"{self._path} {what}") from None
        # Another file has taken its place: what it holds decides whether this attempt may go on with it.
        self.close()
        self._length, self._seq, self._newest_attempt, self._unsure = 0, 0, 0, None
        return False

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Give the file, whose lock is held, and let the lock go; a failing disk becomes JournalUnavailable."""
        file = self._open()
        try:
            yield file
        except OSError as error:
            raise self._unavailable(error) from error
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _open(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self._path.exists()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if is_new:
                _sync_folder(self._path.parent)
        return self._file

    def _catch_up(self, file: int) -> tuple[Batch, ...]:
        """Take in what stands behind the known end, and cut a torn tail."""
        size = os.fstat(file).st_size
        if size < self._length:
            raise JournalCorrupt(f"{self._path} has {size} bytes and had {self._length}: something has cut it")
        if size == self._length:
            return ()
        try:
            scan = scan_batches(_read(file, self._length, size), self._seq)
        except JournalCorrupt as error:
            raise JournalCorrupt(f"{self._path}: {error}") from None
        self._length += scan.length
        for batch in scan.batches:
            self._seq += len(batch.entries)
            self._newest_attempt = max(self._newest_attempt, batch.attempt)
        if self._length < size:
            self._cut(file)
        return scan.batches

    def _write(self, file: int, line: bytes) -> None:
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(file, view) :]
            os.fdatasync(file)
        except OSError as error:
            self._take_back(file, line)
            raise self._unavailable(error) from error

    def _take_back(self, file: int, line: bytes) -> None:
        try:
            self._cut(file)
        except OSError:
            # Nobody knows now what is on disk; the next append looks before it writes.
            self._unsure = line

    def _settle_unsure(self, file: int) -> None:
        """Cut what an append has left that could neither be finished nor taken back, unless others built on it."""
        if self._unsure is None:
            return
        size = os.fstat(file).st_size
        if size <= self._length + len(self._unsure):
            tail = _read(file, self._length, size)
            if self._unsure.startswith(tail):
                self._cut(file)
        self._unsure = None

    def _cut(self, file: int) -> None:
        os.ftruncate(file, self._length)
        os.fdatasync(file)

    def _unavailable(self, error: OSError) -> JournalUnavailable:
        return JournalUnavailable(f"cannot write {self._path}: {error.strerror or error}")


def _read(file: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end and (piece := os.pread(file, end - start, start)):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _sync_folder(path: Path) -> None:
    """Make a new file's name durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
