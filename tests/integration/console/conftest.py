"""An operator API in front of a real API server, asked by people with different rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import urllib3

from integration.console.office import ROOT, Desk, Office, credentials_of_the_api, open_office, settings_of_the_api
from integration.crds.kube_callers import Caller
from pilothouse_console.host import Host
from support.cluster import LocalCluster


@pytest.fixture(scope="session")
def office(control_plane: LocalCluster) -> Office:
    return found_office(control_plane)


def found_office(cluster: LocalCluster) -> Office:
    """Make a new cluster ready for the operator API, and its people."""
    pool = urllib3.PoolManager(ca_certs=str(cluster.ca_path), maxsize=20)
    admin = Caller(cluster, pool, cluster.token)
    for folder in (ROOT / "crds", ROOT / "crds" / "policies"):
        cluster.run_tool("kubectl", "apply", "--server-side", "-f", str(folder))
    cluster.wait_established("--recursive=false", "-f", str(ROOT / "crds"))
    return open_office(admin, cluster)


@asynccontextmanager
async def open_desk(office: Office, cluster: LocalCluster, **settings: Any) -> AsyncIterator[Desk]:
    """Start an operator API in this process; it ends with the context."""
    host = Host(settings_of_the_api(**settings), credentials_of_the_api(office, cluster))
    running = asyncio.create_task(host.run())
    while not (host.is_listening and host.services.watching.is_synced):
        assert not running.done(), running.result()
        await asyncio.sleep(0.01)
    try:
        # No TLS here: to load the authorities of the machine would take longer than most tests.
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{host.port}", timeout=90, verify=False) as client:
            yield Desk(office, host, client)
    finally:
        host.stop()
        assert await running == 0


@pytest.fixture
async def desk(office: Office, control_plane: LocalCluster, anyio_backend: str) -> AsyncIterator[Desk]:
    async with open_desk(office, control_plane) as opened:
        yield opened
