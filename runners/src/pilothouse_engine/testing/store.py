"""A run's object in memory: a test sets directives, and reads what was published."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pilothouse_api.structs import ChildReport, Control, RunLimits, Snapshot
from pilothouse_engine.ports import Clock, Directives, StoreFailure, read_supervision


class MemoryRunStore:
    """Holds directives and the newest snapshot. `failures` are given to the next reads, `refusals` to publishes.

    `on_read` and `on_publish` let a test act at an exact moment.
    """

    def __init__(self, clock: Clock, uid: str = "uid-1") -> None:
        self._clock = clock
        self._changed = asyncio.Event()
        self.directives = Directives(uid=uid, generation=1)
        self.snapshots: list[Snapshot] = []
        self.published_at: list[float] = []
        self.reads = 0
        self.failures: list[StoreFailure] = []
        self.refusals: list[StoreFailure] = []
        self.outage: StoreFailure | None = None
        self.on_read: Callable[[int], None] = lambda read: None
        self.on_publish: Callable[[Snapshot], None] = lambda snapshot: None

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self.snapshots[-1]

    def set_control(self, **fields: Any) -> None:
        """Patch `spec.control`, as a person would: given fields replace, maps are merged."""
        old = self.directives.control.to_raw() if self.directives.control else {}
        for key, value in fields.items():
            old[key] = {**old.get(key, {}), **value} if isinstance(value, dict) else value
        self._set(control=Control.read(old))

    def set_limits(self, **fields: Any) -> None:
        """Patch `spec.limits`."""
        old = self.directives.limits.to_raw() if self.directives.limits else {}
        self._set(limits=RunLimits.read({**old, **fields}))

    def set_child(self, call_id: str, **report: Any) -> None:
        """Report on a child, as the operator would."""
        children = {**self.directives.children, call_id: ChildReport.read({"callId": call_id, **report})}
        self._set(children=children)

    def set_supervision(self, **fields: Any) -> None:
        """Write `barrier` or `clock` of `status.supervision`, as the operator would. No generation counts it."""
        written = read_supervision({"supervisors": {"uid-1": {}}, **fields})
        changed = {name: value for name, value in written.items() if name in ("is_supervised", *fields)}
        self.directives = replace(self.directives, **changed)
        self._changed.set()

    def raise_clock(self) -> None:
        """Say that supervision has seen the newest snapshot."""
        seen = self.snapshot
        self.set_supervision(clock={"visit": seen.visit, "turn": seen.turn, "journalLength": seen.journal_length})

    def set_deleting(self) -> None:
        """Begin the deletion of the run."""
        self._set(deleting=True)

    def _set(self, **fields: Any) -> None:
        self.directives = replace(self.directives, generation=self.directives.generation + 1, **fields)
        self._changed.set()

    async def read(self) -> Directives | StoreFailure:
        """Return the directives, or the failure that was ordered."""
        self.reads += 1
        self._changed.clear()
        self.on_read(self.reads)
        if self.failures:
            return self.failures.pop(0)
        return self.outage or self.directives

    async def publish(self, snapshot: Snapshot) -> StoreFailure | None:
        """Keep the snapshot, or return the failure that was ordered."""
        if self.refusals:
            return self.refusals.pop(0)
        if self.outage is not None:
            return self.outage
        self.snapshots.append(snapshot)
        self.published_at.append(self._clock.monotonic())
        self.directives = replace(self.directives, snapshot=snapshot.to_raw())
        self.on_publish(snapshot)
        return None

    async def wait(self, timeout: float) -> None:
        """Return when the directives were changed, or after `timeout` seconds of the clock."""
        changed = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._clock.sleep(timeout))
        try:
            await asyncio.wait({changed, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            slept.cancel()
            await asyncio.gather(changed, slept, return_exceptions=True)
        self._changed.clear()
