"""The run's object behind a network that throttles, fails, hangs, cuts and falls silent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from integration.operator.fault_proxy import Fault, FaultProxy, fault_proxy, is_watch, watches, writes
from pilothouse_api.structs import Snapshot
from pilothouse_engine.ports import Directives, StoreFailure
from pilothouse_kubernetes.connection import Credentials
from pilothouse_runner.adapters import kubernetes_run_store
from pilothouse_runner.adapters.api_server import ApiServer
from pilothouse_runner.adapters.kubernetes_run_store import KubernetesRunStore
from support.agentruns import Administrator, StoredRun
from support.cluster import LocalCluster

pytestmark = pytest.mark.anyio
OpenStore = Callable[..., KubernetesRunStore]
FAULTS: list[Fault] = ["Throttle", "Fail", "Hang", "Reset"]


@asynccontextmanager
async def behind_a_proxy(
    crds: LocalCluster, server: ApiServer, run: StoredRun
) -> AsyncIterator[tuple[FaultProxy, KubernetesRunStore]]:
    credentials = Credentials(server=crds.url, token=crds.token, ca_data=crds.ca_path.read_text())
    async with fault_proxy(credentials) as proxy:
        store = KubernetesRunStore(ApiServer(proxy.url, server.token_path), "default", run.name, run.uid, 1)
        try:
            yield proxy, store
        finally:
            await store.aclose()


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_run_store, "REQUEST_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(kubernetes_run_store, "READ_DEADLINE_SECONDS", 3.0)
    monkeypatch.setattr(kubernetes_run_store, "PUBLISH_DEADLINE_SECONDS", 3.0)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is wrong any more, an answer may take as long as this machine takes."""
    monkeypatch.setattr(kubernetes_run_store, "REQUEST_TIMEOUT_SECONDS", 20.0)
    monkeypatch.setattr(kubernetes_run_store, "READ_DEADLINE_SECONDS", 60.0)
    monkeypatch.setattr(kubernetes_run_store, "PUBLISH_DEADLINE_SECONDS", 60.0)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_snapshot_is_stored_when_the_fault_is_over_before_the_deadline(
    administrator: Administrator,
    crds: LocalCluster,
    server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    monkeypatch.setattr(kubernetes_run_store, "PUBLISH_DEADLINE_SECONDS", 60.0)
    run = administrator.create()
    async with behind_a_proxy(crds, server, run) as (proxy, store):
        proxy.inject(fault, writes("status"))
        publishing = asyncio.create_task(store.publish(Snapshot(attempt=1, turn=1)))
        while not proxy.hits:  # noqa: ASYNC110 - the proxy tells nobody
            await asyncio.sleep(0.01)
        proxy.heal()
        be_patient(monkeypatch)

        assert await publishing is None

    assert administrator.get(run.name)["status"]["run"]["turn"] == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_stays_is_unavailable_after_the_deadline_and_no_hang(
    administrator: Administrator,
    crds: LocalCluster,
    server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    run = administrator.create()
    async with behind_a_proxy(crds, server, run) as (proxy, store):
        proxy.inject(fault, lambda request: True)
        began = time.monotonic()
        read = await store.read()
        published = await store.publish(Snapshot(attempt=1, turn=1))

        assert time.monotonic() - began < 40
        for result in (read, published):
            assert isinstance(result, StoreFailure)
            assert result.kind == "Unavailable"
        assert len(proxy.hits) >= 4

        proxy.heal()
        be_patient(monkeypatch)
        assert isinstance(await store.read(), Directives)
        assert await store.publish(Snapshot(attempt=1, turn=2)) is None


@pytest.mark.parametrize("fault", ["Silence", "Reset", "Expire"])
async def test_a_patch_is_seen_even_when_the_watch_loses_it(
    administrator: Administrator,
    crds: LocalCluster,
    server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    be_patient(monkeypatch)
    monkeypatch.setattr(kubernetes_run_store, "WATCH_SECONDS", 2)
    run = administrator.create()
    async with behind_a_proxy(crds, server, run) as (proxy, store):
        first = await store.read()
        assert isinstance(first, Directives)
        proxy.inject(fault, watches("agentruns"))
        waiting = asyncio.create_task(store.wait(100))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(administrator.set_spec, run.name, control={"mode": "Pause"})

        await asyncio.wait_for(waiting, 60)

        second = await store.read()
        assert isinstance(second, Directives)
        assert second.generation == first.generation + 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_waiting_on_a_broken_watch_costs_few_requests(
    administrator: Administrator, crds: LocalCluster, server: ApiServer, fault: Fault
) -> None:
    run = administrator.create()
    async with behind_a_proxy(crds, server, run) as (proxy, store):
        asked = 0

        def counting(request: object) -> bool:
            nonlocal asked
            asked += 1
            return is_watch(request)  # type: ignore[arg-type]

        proxy.inject(fault, counting)
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            await store.read()
            await store.wait(1)

        assert asked < 40
