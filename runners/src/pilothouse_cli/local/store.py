"""A local run's object as the engine sees it: directives in, snapshots out, fenced like the one in a cluster."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.structs import ChildReport, Control, RunLimits, Snapshot
from pilothouse_cli.exits import CliError
from pilothouse_cli.local.state import RawRun, RunFolder, RunIsGone
from pilothouse_cli.local.status import report
from pilothouse_engine.ports import Directives, StoreFailure, read_supervision, supervision_key

POLL_SECONDS = 0.05
PAUSE_SECONDS = 0.5
"""Between two looks at a file that cannot be read."""


def _now() -> datetime:
    return datetime.now(UTC)


class LocalRunStore:
    """One attempt's view of `run.json`; a `RunStore`."""

    def __init__(self, folder: RunFolder, uid: str, attempt: int, now: Callable[[], datetime] = _now) -> None:
        self._folder = folder
        self._uid = uid
        self._attempt = attempt
        self._now = now
        self._seen: object = None

    async def read(self) -> Directives | StoreFailure:
        """Return the newest directives, read now."""
        raw = self._read()
        if isinstance(raw, StoreFailure):
            return raw
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        self._seen = _answers_to(raw)
        try:
            return Directives(
                uid=self._uid,
                generation=int(raw["metadata"]["generation"]),
                control=Control.read(spec["control"]) if spec.get("control") is not None else None,
                limits=RunLimits.read(spec["limits"]) if spec.get("limits") is not None else None,
                snapshot=status.get("run"),
                children={it["callId"]: ChildReport.read(it) for it in _children(raw)},
                **read_supervision(status.get("supervision")),
            )
        except ValueError as error:
            what = f"spec.control, spec.limits, status.children or status.supervision cannot be understood: {error}"
            return StoreFailure("Refused", what[:500])

    async def publish(self, snapshot: Snapshot) -> StoreFailure | None:
        """Replace the snapshot; None when it is stored."""

        def take_in(raw: RawRun) -> RawRun:
            failure = self._check(raw)
            if failure is not None:
                raise _Refusal(failure)
            status = report(raw.get("status") or {}, snapshot, int(raw["metadata"]["generation"]), self._now())
            return {**raw, "status": status}

        try:
            self._folder.edit(take_in)
        except _Refusal as refusal:
            return refusal.failure
        except RunIsGone:
            return self._gone()
        except CliError as error:
            return StoreFailure("Unavailable", error.message)
        return None

    async def wait(self, timeout: float) -> None:
        """Return when the run was edited since the last read, or after `timeout` seconds."""
        ends = asyncio.get_running_loop().time() + timeout
        looked_at: object = "nothing yet"
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            signature = self._signature()
            if signature != looked_at:
                raw = self._read()
                if isinstance(raw, StoreFailure):
                    await asyncio.sleep(min(PAUSE_SECONDS, left) if raw.kind == "Unavailable" else 0)
                    return
                if _answers_to(raw) != self._seen:
                    return
                looked_at = signature
            await asyncio.sleep(min(POLL_SECONDS, left))

    def _read(self) -> RawRun | StoreFailure:
        try:
            raw = self._folder.read_raw()
        except RunIsGone:
            return self._gone()
        except CliError as error:
            return StoreFailure("Unavailable", error.message)
        return self._check(raw) or raw

    def _check(self, raw: RawRun) -> StoreFailure | None:
        if raw["metadata"].get("uid") != self._uid:
            return StoreFailure("Gone", f"the run {self._folder.name} is another one now")
        attempt = (raw.get("status") or {}).get("attempt")
        if attempt != self._attempt:
            return StoreFailure("Fenced", f"the run is at attempt {attempt}, this is attempt {self._attempt}")
        return None

    def _gone(self) -> StoreFailure:
        return StoreFailure("Gone", f"{self._folder.run_path} does not exist")

    def _signature(self) -> tuple[int, int] | None:
        try:
            stat = self._folder.run_path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns


def _children(raw: RawRun) -> list[dict[str, Any]]:
    return (raw.get("status") or {}).get("children") or []


def _answers_to(raw: RawRun) -> object:
    """Return what an attempt waits for a change of: the spec, what is said of its children, and how far it was seen."""
    supervision = (raw.get("status") or {}).get("supervision")
    return raw["metadata"]["generation"], _children(raw), supervision_key(supervision)


class _Refusal(Exception):
    def __init__(self, failure: StoreFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure
