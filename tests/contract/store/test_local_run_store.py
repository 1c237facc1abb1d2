"""What the local store adds: the fence, a folder that is removed, damage, and two hands at once."""

import asyncio
import json
import shutil
import threading
from typing import Any

import pytest

from pilothouse_api.structs import Effects, Parked, RunExit, Snapshot, UnknownEffect
from pilothouse_cli.local.state import RunIsLive
from pilothouse_cli.local.store import LocalRunStore
from pilothouse_engine.ports import Directives, StoreFailure

pytestmark = pytest.mark.anyio


def kind_of(result: object) -> str | None:
    return result.kind if isinstance(result, StoreFailure) else None


async def test_an_older_attempt_can_neither_read_nor_write(local: Any, snapshot: Snapshot) -> None:
    local.patch({"status": {"attempt": 2}})

    assert kind_of(await local.store.read()) == "Fenced"
    assert kind_of(await local.store.publish(snapshot)) == "Fenced"
    assert "run" not in local.folder.read_raw()["status"]


async def test_a_run_that_is_another_one_or_was_removed_is_gone(local: Any, snapshot: Snapshot) -> None:
    stranger = LocalRunStore(local.folder, "u-2", 1)
    assert kind_of(await stranger.read()) == "Gone"
    assert kind_of(await stranger.publish(snapshot)) == "Gone"

    shutil.rmtree(local.folder.path)
    assert kind_of(await local.store.read()) == "Gone"
    assert kind_of(await local.store.publish(snapshot)) == "Gone"
    await asyncio.wait_for(local.store.wait(100), 50)
    assert not local.folder.path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"metadata": {"generation": "1"}}'])
async def test_a_damaged_file_is_unavailable_and_is_not_written_over(local: Any, snapshot: Snapshot, text: str) -> None:
    local.folder.run_path.write_text(text)

    assert kind_of(await local.store.read()) == "Unavailable"
    assert kind_of(await local.store.publish(snapshot)) == "Unavailable"
    assert local.folder.run_path.read_text() == text


async def test_directives_that_nobody_understands_are_refused(local: Any) -> None:
    local.set_control(mode="Dance")

    failure = await local.store.read()

    assert isinstance(failure, StoreFailure)
    assert failure.kind == "Refused"
    assert "mode" in failure.message


async def test_a_person_and_the_run_write_at_once_and_neither_loses_anything(local: Any) -> None:
    def steer() -> None:
        for number in range(60):
            local.set_control(steer={f"s{number}": {"message": "x"}})

    person = threading.Thread(target=steer)
    person.start()
    for turn in range(60):
        assert await local.store.publish(Snapshot(attempt=1, turn=turn)) is None
        await asyncio.sleep(0)
    await asyncio.to_thread(person.join)

    directives = await local.store.read()
    assert isinstance(directives, Directives)
    assert directives.control is not None
    assert len(directives.control.steer) == 60
    assert directives.generation == 61
    assert directives.snapshot == Snapshot(attempt=1, turn=59).to_raw()


async def test_readers_never_see_half_a_file(local: Any) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not stop.is_set():
            seen.append(json.loads(local.folder.run_path.read_text())["metadata"]["generation"])

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(50):
        await local.store.publish(Snapshot(attempt=1, turn=turn, result={"text": "x" * 20_000}))
    stop.set()
    await asyncio.to_thread(reader.join)

    assert set(seen) == {1}


def test_one_process_at_a_time_holds_a_run(local: Any) -> None:
    with local.folder.hold():
        assert local.folder.is_live()
        with pytest.raises(RunIsLive), local.folder.hold():
            pass
    assert not local.folder.is_live()
    with local.folder.hold():
        assert local.folder.is_live()


PARKED = Parked(reason="Paused", turn=1, since="t")
STATUSES: list[tuple[dict[str, Any], str, dict[str, str], str]] = [
    ({}, "Running", {"Ready": "True", "Stalled": "False"}, "Running"),
    ({"parked": PARKED}, "Paused", {"Ready": "True", "Stalled": "False", "Paused": "True"}, "Paused"),
    (
        {"parked": Parked(reason="Stopped", turn=1, since="t", released=True)},
        "Paused",
        {"Ready": "True", "Stalled": "False", "Paused": "True"},
        "Stopped",
    ),
    (
        {"parked": Parked(reason="ControlLost", turn=1, since="t")},
        "Running",
        {"Ready": "True", "Stalled": "False"},
        "ControlLost",
    ),
    (
        {"exit": RunExit(signal="default", reason="FinishedEarly")},
        "Succeeded",
        {"Ready": "True", "Stalled": "False", "Finished": "True", "Complete": "True", "EffectsSettled": "True"},
        "FinishedEarly",
    ),
    (
        {
            "exit": RunExit(signal="aborted", reason="Aborted"),
            "effects": Effects(unknown=[UnknownEffect(call_id="c", tool="t", at="t")]),
        },
        "Aborted",
        {"Ready": "False", "Stalled": "True", "Finished": "True", "Failed": "True", "EffectsSettled": "False"},
        "Aborted",
    ),
    (
        {"exit": RunExit(signal="error", reason="Error", message="no key")},
        "Failed",
        {"Ready": "False", "Stalled": "True", "Finished": "True", "Failed": "True", "EffectsSettled": "True"},
        "Error",
    ),
]


@pytest.mark.parametrize(("fields", "phase", "conditions", "reason"), STATUSES)
async def test_phase_and_conditions_follow_from_the_snapshot(
    local: Any, fields: dict[str, Any], phase: str, conditions: dict[str, str], reason: str
) -> None:
    await local.store.publish(Snapshot(attempt=1, turn=1, **fields))

    status = local.folder.read().status
    assert status.phase == phase
    assert {condition.type: condition.status for condition in status.conditions} == conditions
    assert {condition.reason for condition in status.conditions} == {reason}
    assert all(condition.message for condition in status.conditions)


async def test_a_condition_keeps_the_time_of_its_last_change(local: Any) -> None:
    await local.store.publish(Snapshot(attempt=1, turn=1))
    local.patch({"status": {"conditions": [{**c.to_raw(), "lastTransitionTime": "then"} for c in conditions(local)]}})

    await local.store.publish(Snapshot(attempt=1, turn=2, exit=RunExit(signal="error", reason="Error")))

    times = {condition.type: condition.last_transition_time for condition in conditions(local)}
    assert "then" not in (times["Ready"], times["Stalled"], times["Finished"])

    local.patch({"status": {"conditions": [{**c.to_raw(), "lastTransitionTime": "then"} for c in conditions(local)]}})
    await local.store.publish(Snapshot(attempt=1, turn=3, exit=RunExit(signal="error", reason="Error")))
    assert {condition.last_transition_time for condition in conditions(local)} == {"then"}


def conditions(local: Any) -> Any:
    return local.folder.read().status.conditions
