"""The run's object on a real API server: fence, conflicts, watches, restarts, TLS, wrong roles."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pilothouse_api.structs import Barrier, Snapshot, SupervisionClock
from pilothouse_engine.ports import Directives, StoreFailure
from pilothouse_runner.adapters import kubernetes_run_store
from pilothouse_runner.adapters.api_server import ApiServer
from pilothouse_runner.adapters.kubernetes_run_store import KubernetesRunStore
from support.agentruns import Administrator
from support.cluster import LocalCluster

pytestmark = pytest.mark.anyio
OpenStore = Callable[..., KubernetesRunStore]


def snapshot(turn: int, attempt: int = 1) -> Snapshot:
    return Snapshot(attempt=attempt, turn=turn, step="s")


def kind_of(result: object) -> str | None:
    return result.kind if isinstance(result, StoreFailure) else None


async def test_directives_are_read_as_they_are_now(administrator: Administrator, open_store: OpenStore) -> None:
    run = administrator.create(limits={"tokenBudget": 500})
    store = open_store(run)

    first = await store.read()
    administrator.set_spec(run.name, control={"mode": "Pause", "steer": {"a1": {"message": "look"}}})
    second = await store.read()

    assert isinstance(first, Directives)
    assert isinstance(second, Directives)
    assert (first.generation, first.control) == (1, None)
    assert first.limits is not None
    assert first.limits.token_budget == 500
    assert (second.generation, second.uid, second.deleting) == (2, run.uid, False)
    assert second.control is not None
    assert (second.control.mode, second.control.steer["a1"].message) == ("Pause", "look")
    await store.aclose()


async def test_a_snapshot_replaces_the_one_before_and_nothing_else(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    administrator.set_status(run.name, phase="Running")
    store = open_store(run)

    assert await store.publish(Snapshot(attempt=1, turn=1, tool_calls={"look_up": 1})) is None
    assert await store.publish(snapshot(2)) is None

    status = administrator.get(run.name)["status"]
    assert status["run"] == snapshot(2).to_raw()
    assert (status["phase"], status["attempt"]) == ("Running", 1)
    read = await store.read()
    assert isinstance(read, Directives)
    assert read.snapshot == status["run"]
    await store.aclose()


async def test_an_older_attempt_can_neither_write_nor_read_on(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    older, newer = open_store(run, 1), open_store(run, 2)
    assert await older.publish(snapshot(1)) is None

    administrator.set_status(run.name, attempt=2)
    assert await newer.publish(snapshot(5, attempt=2)) is None

    assert kind_of(await older.publish(snapshot(2))) == "Fenced"
    assert kind_of(await older.read()) == "Fenced"
    assert administrator.get(run.name)["status"]["run"]["turn"] == 5
    await older.aclose()
    await newer.aclose()


def journaled(length: int, **fields: Any) -> Snapshot:
    return Snapshot(attempt=1, turn=length, journal_length=length, **fields)


@pytest.mark.parametrize("before", [None, 2])
async def test_a_write_that_hung_on_its_way_does_not_replace_a_newer_snapshot(
    administrator: Administrator, open_store: OpenStore, before: int | None
) -> None:
    run = administrator.create()
    store = open_store(run)
    if before is not None:
        assert await store.publish(journaled(before)) is None
    assert isinstance(await store.read(), Directives)
    path = f"{store._collection}/{run.name}/status"

    hanging = store._build_patch(journaled(3))
    assert await store.publish(journaled(5)) is None
    late = await store._send("PATCH", path, hanging)

    assert not isinstance(late, StoreFailure) and late.status == 422
    assert administrator.get(run.name)["status"]["run"]["turn"] == 5
    await store.aclose()


async def test_a_pod_with_the_number_of_another_one_writes_nothing_older(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    first, twin = open_store(run), open_store(run)
    assert isinstance(await first.read(), Directives) and isinstance(await twin.read(), Directives)

    assert await twin.publish(journaled(5)) is None
    assert await first.publish(journaled(4)) is None
    assert administrator.get(run.name)["status"]["run"]["turn"] == 5
    assert await first.publish(journaled(6)) is None
    assert administrator.get(run.name)["status"]["run"]["turn"] == 6

    await first.aclose()
    await twin.aclose()


async def test_a_snapshot_of_a_shorter_journal_is_stored_by_who_knows_what_it_replaces(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store, heir = open_store(run), open_store(run)
    assert await store.publish(journaled(5)) is None

    assert isinstance(await heir.read(), Directives)
    assert await heir.publish(journaled(2)) is None

    assert administrator.get(run.name)["status"]["run"]["turn"] == 2
    await store.aclose()
    await heir.aclose()


async def test_nothing_goes_on_in_a_run_that_was_reported_as_ended(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)
    assert await store.publish(journaled(1)) is None

    administrator.set_status(run.name, exit={"signal": "error", "reason": "JournalLost", "message": "m"})

    assert kind_of(await store.read()) == "Fenced"
    assert kind_of(await store.publish(journaled(2))) == "Fenced"
    assert administrator.get(run.name)["status"]["run"]["turn"] == 1
    await store.aclose()


async def test_a_run_that_was_deleted_or_made_anew_is_gone(administrator: Administrator, open_store: OpenStore) -> None:
    run = administrator.create()
    store = open_store(run)
    stranger = open_store(dataclasses.replace(run, uid="11111111-1111-1111-1111-111111111111"))

    assert kind_of(await stranger.read()) == "Gone"
    assert kind_of(await stranger.publish(snapshot(1))) == "Gone"
    assert "run" not in administrator.get(run.name)["status"]

    administrator.delete(run.name)
    assert kind_of(await store.read()) == "Gone"
    assert kind_of(await store.publish(snapshot(1))) == "Gone"
    await store.aclose()
    await stranger.aclose()


async def test_an_object_that_is_too_large_is_refused_and_not_taken_for_a_lost_fence(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)

    result = await store.publish(Snapshot(attempt=1, turn=1, result={"text": "x" * 4_000_000}))

    assert kind_of(result) == "Refused"
    assert await store.publish(snapshot(1)) is None
    await store.aclose()


async def test_forty_stores_write_at_once_and_every_one_is_stored(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    stores = [open_store(run) for _ in range(40)]

    results = await asyncio.gather(*(store.publish(snapshot(n)) for n, store in enumerate(stores)))

    assert results == [None] * 40
    for store in stores:
        await store.aclose()


async def test_snapshots_of_one_store_are_written_in_order_and_those_that_waited_only_once(
    administrator: Administrator, open_store: OpenStore, crds: LocalCluster
) -> None:
    run = administrator.create()
    store = open_store(run)

    results = await asyncio.gather(*(store.publish(snapshot(n)) for n in range(30)))

    assert results == [None] * 30
    assert administrator.get(run.name)["status"]["run"]["turn"] == 29
    assert crds.audit_log.read_text().count(f"/agentruns/{run.name}/status?fieldManager=pilothouse-runner") == 2
    await store.aclose()


async def test_people_and_the_operator_may_write_between_two_snapshots(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)
    for turn in range(5):
        administrator.set_spec(run.name, control={"reason": f"r{turn}"})
        administrator.set_status(run.name, phase=f"Phase{turn}")
        assert await store.publish(snapshot(turn)) is None

    assert administrator.get(run.name)["status"]["run"]["turn"] == 4
    await store.aclose()


async def test_a_waiting_run_wakes_within_a_fraction_of_a_second_of_a_patch(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)
    latencies = []
    for number in range(10):
        await store.read()
        waiting = asyncio.create_task(store.wait(20))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        began = time.monotonic()
        await asyncio.to_thread(administrator.set_spec, run.name, control={"reason": f"n{number}"})
        await waiting
        latencies.append(time.monotonic() - began)

    # The best of them tells what the watch costs, the others what the machine has to do besides.
    assert min(latencies) < 0.5 and max(latencies) < 15, latencies
    await store.aclose()


async def test_a_patch_between_the_read_and_the_wait_is_not_missed(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)
    await store.read()
    administrator.set_spec(run.name, control={"mode": "Pause"})

    began = time.monotonic()
    await store.wait(20)
    assert time.monotonic() - began < 15
    await store.aclose()


async def test_status_writes_do_not_wake_a_waiting_run_but_a_deletion_and_a_newer_attempt_do(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)
    await store.read()
    await store.publish(snapshot(1))
    administrator.set_status(run.name, phase="Paused")

    began = time.monotonic()
    await store.wait(1.5)
    assert 1.4 < time.monotonic() - began < 15

    for change in (lambda: administrator.set_status(run.name, attempt=2), lambda: administrator.delete(run.name)):
        waiting = asyncio.create_task(store.wait(20))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await asyncio.to_thread(change)
        await waiting
        assert time.monotonic() - began < 15
        await open_store(run, 2).read()
    await store.aclose()


async def test_of_supervision_only_its_clock_its_barrier_and_its_beginning_wake_a_waiting_run(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    store = open_store(run)
    guard: dict[str, Any] = {"name": "guard", "generation": 1}
    seen = {"visit": 1, "turn": 2, "journalLength": 17}

    async def wakes(seconds: float = 20, **supervision: Any) -> bool:
        await store.read()
        waiting = asyncio.create_task(store.wait(seconds))
        began = time.monotonic()
        await asyncio.sleep(0.1)
        await asyncio.to_thread(administrator.set_status, run.name, supervision=supervision)
        await waiting
        return time.monotonic() - began < 0.9 * seconds

    told = {"supervisors": {"uid-1": guard}, "barrier": {"timeoutSeconds": 60, "onTimeout": "Pause"}}
    assert await wakes(**told)
    assert await wakes(**told, clock=seen)
    assert not await wakes(1, supervisors={"uid-1": {**guard, "fired": ["f00d"]}})
    assert not await wakes(1, clock={**seen, "turn": 3})
    assert await wakes(clock={**seen, "journalLength": 21})
    directives = await store.read()
    assert isinstance(directives, Directives) and directives.is_supervised
    assert (directives.barrier, directives.clock) == (
        Barrier(timeout_seconds=60, on_timeout="Pause"),
        SupervisionClock(visit=1, turn=2, journal_length=21),
    )
    await store.aclose()


async def test_a_restart_of_the_api_server_is_outlived(
    administrator: Administrator, open_store: OpenStore, crds: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = administrator.create()
    store = open_store(run)
    await store.read()
    waiting = asyncio.create_task(store.wait(200))
    await asyncio.sleep(0.2)

    await asyncio.to_thread(crds.stop_apiserver)
    await asyncio.wait_for(waiting, 60)  # the watch broke: whoever waits is told to look
    monkeypatch.setattr(kubernetes_run_store, "READ_DEADLINE_SECONDS", 0.5)
    monkeypatch.setattr(kubernetes_run_store, "PUBLISH_DEADLINE_SECONDS", 0.5)
    assert kind_of(await store.read()) == "Unavailable"
    assert kind_of(await store.publish(snapshot(1))) == "Unavailable"

    monkeypatch.setattr(kubernetes_run_store, "PUBLISH_DEADLINE_SECONDS", 60.0)
    publishing = asyncio.create_task(store.publish(snapshot(2)))
    await asyncio.to_thread(crds.start_apiserver)
    assert await publishing is None
    monkeypatch.setattr(kubernetes_run_store, "READ_DEADLINE_SECONDS", 60.0)
    assert isinstance(await store.read(), Directives)
    assert administrator.get(run.name)["status"]["run"]["turn"] == 2
    await store.aclose()


async def test_an_api_server_that_no_known_authority_vouches_for_is_not_talked_to(
    administrator: Administrator,
    open_store: OpenStore,
    server: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes_run_store, "READ_DEADLINE_SECONDS", 2.0)
    run = administrator.create()
    store = open_store(run, server=structs.replace(server, ca_path=None))

    result = await store.read()

    assert isinstance(result, StoreFailure)
    assert result.kind == "Unavailable"
    assert "CERTIFICATE_VERIFY_FAILED" in result.message
    await store.aclose()


async def test_a_token_is_read_anew_for_each_request(
    administrator: Administrator,
    open_store: OpenStore,
    server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = administrator.create()
    store = open_store(run)
    assert server.token_path is not None
    good = server.token_path.read_text()
    server.token_path.write_text("expired")
    assert kind_of(await store.read()) == "Forbidden"
    server.token_path.unlink()
    with monkeypatch.context() as impatience:
        impatience.setattr(kubernetes_run_store, "READ_DEADLINE_SECONDS", 0.3)
        assert kind_of(await store.read()) == "Unavailable"
    server.token_path.write_text(good)
    assert isinstance(await store.read(), Directives)
    await store.aclose()


async def test_a_role_without_rights_is_forbidden_and_says_what_is_missing(
    administrator: Administrator, open_store: OpenStore, server: ApiServer, crds: LocalCluster
) -> None:
    crds.run_tool("kubectl", "create", "serviceaccount", "nobody")
    assert server.token_path is not None
    server.token_path.write_text(crds.run_tool("kubectl", "create", "token", "nobody").strip())
    run = administrator.create()
    store = open_store(run)

    read, published = await store.read(), await store.publish(snapshot(1))

    assert isinstance(read, StoreFailure)
    assert read.kind == "Forbidden"
    assert "cannot get resource" in read.message
    assert kind_of(published) == "Forbidden"
    began = time.monotonic()
    await store.wait(0.5)
    assert 0.05 < time.monotonic() - began < 15
    await store.aclose()


async def test_the_end_of_a_child_is_read_and_wakes_a_waiting_run(
    administrator: Administrator, open_store: OpenStore
) -> None:
    run = administrator.create()
    child = {"callId": "t1-0-9f2c11ab", "name": "r1-t1-0-9f2c11ab"}
    administrator.set_status(run.name, children=[child])
    store = open_store(run)
    first = await store.read()
    assert isinstance(first, Directives)
    assert first.children["t1-0-9f2c11ab"].exit is None

    waiting = asyncio.create_task(store.wait(100))
    exit_ = {"signal": "resolved", "reason": "Complete", "message": "it ended"}
    ended = child | {"exit": exit_, "result": {"n": 1}, "inputTokens": 5, "outputTokens": 2, "costUSD": "0.1"}
    administrator.set_status(run.name, children=[ended])
    await asyncio.wait_for(waiting, 60)
    second = await store.read()
    assert isinstance(second, Directives)
    report = second.children["t1-0-9f2c11ab"]
    assert report.exit is not None
    assert (report.exit.signal, report.result, report.cost_usd) == ("resolved", {"n": 1}, "0.1")
    await store.aclose()
