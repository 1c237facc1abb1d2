"""The stores under test, and the hands of a person on them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from pilothouse_api.patches import merge_patch
from pilothouse_api.structs import Snapshot
from pilothouse_cli.local.state import RunFolder, make_folder
from pilothouse_cli.local.store import LocalRunStore
from pilothouse_engine.ports import RunStore
from pilothouse_engine.testing.store import MemoryRunStore
from pilothouse_runner.adapters.clock import SystemClock


class Hands(Protocol):
    """A store, and what people do to its object."""

    store: RunStore

    def set_control(self, **fields: Any) -> None:
        """Patch `spec.control`."""
        ...

    def set_limits(self, **fields: Any) -> None:
        """Patch `spec.limits`."""
        ...

    def set_supervision(self, **fields: Any) -> None:
        """Write `status.supervision`, as whoever supervises the run does."""
        ...


class MemoryHands:
    def __init__(self, folder: Path) -> None:
        memory = MemoryRunStore(SystemClock())
        self.store: RunStore = memory
        self.set_control = memory.set_control
        self.set_limits = memory.set_limits
        self.set_supervision = memory.set_supervision


class LocalHands:
    def __init__(self, folder: Path) -> None:
        raw = {
            "metadata": {"name": "r1", "uid": "u-1", "generation": 1, "resourceVersion": "1"},
            "spec": {"workflowRef": {"name": "w"}},
            "status": {"attempt": 1},
        }
        self.folder: RunFolder = make_folder(folder, raw, {"plan.json": "{}"})
        self.store: RunStore = LocalRunStore(self.folder, "u-1", 1)

    def patch(self, patch: Mapping[str, Any]) -> None:
        def change(raw: dict[str, Any]) -> dict[str, Any]:
            merged: dict[str, Any] = merge_patch(raw, patch)
            if "spec" in patch:
                merged["metadata"]["generation"] += 1
            return merged

        self.folder.edit(change)

    def set_control(self, **fields: Any) -> None:
        self.patch({"spec": {"control": fields}})

    def set_limits(self, **fields: Any) -> None:
        self.patch({"spec": {"limits": fields}})

    def set_supervision(self, **fields: Any) -> None:
        self.patch({"status": {"supervision": {"supervisors": {"uid-1": {"name": "guard"}}, **fields}}})


BACKENDS: Mapping[str, Callable[[Path], Hands]] = {"memory": MemoryHands, "local": LocalHands}


@pytest.fixture(params=sorted(BACKENDS))
def hands(request: pytest.FixtureRequest, tmp_path: Path) -> Hands:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> LocalHands:
    return LocalHands(tmp_path)


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(attempt=1, turn=2, step="s", journal_length=7)
