"""The picture of all runs, fed by watches and by the answers of this process's own patches. Holds values, does no I/O.

An older version never replaces a newer one, and the late answer of a patch brings no deleted run back. A run is kept as
the bytes of its JSON: as objects of Python it would take ten times the memory.
"""

import asyncio
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_console.summaries import RunSummary, summarize

Raw = dict[str, Any]
TOMBSTONES = 4096


class RunKey(NamedTuple):
    """Which run."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A run as it was last seen."""

    key: RunKey
    uid: str
    version: int
    summary: RunSummary
    body: bytes

    def read(self) -> Raw:
        """Return the whole object, but for its managed fields."""
        raw: Raw = json.loads(self.body)
        return raw

    def run(self) -> AgentRun:
        """Return the run; raises pydantic's ValidationError for one that this version cannot read."""
        return AgentRun.model_validate_json(self.body)


Listener = Callable[[RunKey, Entry | None], None]
"""Takes a run that has changed, or None in place of one that is gone; never awaits, never raises."""


class Picture:
    """Runs by key."""

    def __init__(self) -> None:
        self._entries: dict[RunKey, Entry] = {}
        # Uids of deleted runs, so that the late answer of a patch does not bring one back.
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._listeners: dict[RunKey | None, set[Listener]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: RunKey) -> Entry | None:
        """Return a run, or None."""
        return self._entries.get(key)

    def entries(self) -> Iterable[Entry]:
        """Return all runs, in no order."""
        return self._entries.values()

    def apply(self, raw_run: Mapping[str, Any]) -> Entry | None:
        """Take a version of a run; return the newest one that is known, None where the run is gone."""
        metadata = raw_run["metadata"]
        key = RunKey(metadata["namespace"], metadata["name"])
        known, version = self._entries.get(key), version_of(raw_run)
        if metadata["uid"] in self._tombstones or (known is not None and version <= known.version):
            return known
        kept = {**raw_run, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}
        body = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        entry = Entry(key, metadata["uid"], version, summarize(kept), body)
        if known is not None and known.uid != entry.uid:
            self._bury(known.uid)
        self._entries[key] = entry
        self._tell(key, entry)
        return entry

    def remove(self, raw_run: Mapping[str, Any]) -> None:
        """Take the deletion of a run."""
        metadata = raw_run["metadata"]
        key = RunKey(metadata["namespace"], metadata["name"])
        self._bury(metadata["uid"])
        known = self._entries.get(key)
        if known is not None and known.uid == metadata["uid"]:
            del self._entries[key]
            self._tell(key, None)

    def retain(self, namespace: str | None, uids: frozenset[str], version: int) -> None:
        """Drop the runs (of a namespace) that a list of this version does not have and that are not newer than it."""
        for entry in [*self._entries.values()]:
            is_meant = namespace is None or entry.key.namespace == namespace
            if is_meant and entry.uid not in uids and entry.version <= version:
                del self._entries[entry.key]
                self._bury(entry.uid)
                self._tell(entry.key, None)

    @contextmanager
    def listening(self, key: RunKey | None, listener: Listener) -> Iterator[None]:
        """Tell a listener of changes of one run, or of all (None), while the context lasts."""
        self._listeners[key].add(listener)
        try:
            yield
        finally:
            self._listeners[key].discard(listener)
            if not self._listeners[key]:
                del self._listeners[key]

    async def wait_for_change(self, key: RunKey, version: int, timeout: float) -> Entry | None:
        """Return the run as soon as it is newer than a version, or as it is after `timeout` seconds."""
        changed = asyncio.Event()
        with self.listening(key, lambda *_: changed.set()):
            entry = self._entries.get(key)
            if entry is not None and entry.version <= version:
                try:
                    async with asyncio.timeout(timeout):
                        await changed.wait()
                except TimeoutError:
                    pass  # it is as it was, which is what is returned
        return self._entries.get(key)

    def _bury(self, uid: str) -> None:
        self._tombstones[uid] = None
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _tell(self, key: RunKey, entry: Entry | None) -> None:
        for listener in [*self._listeners.get(key, ()), *self._listeners.get(None, ())]:
            listener(key, entry)


def version_of(raw_object: Mapping[str, Any]) -> int:
    """Return the resourceVersion as a number, by which versions are ordered; 0 where there is none."""
    text = str(raw_object["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0
