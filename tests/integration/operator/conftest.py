"""A real API server, an operator process a test, in a namespace of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from integration.operator.stage import Stage, make_namespace, prepare_cluster
from pilothouse_kubernetes.client import KubernetesClient
from pilothouse_kubernetes.connection import Connection, find_credentials
from support.cluster import LocalCluster


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(prepare_cluster(control_plane, tmp_path_factory.mktemp("operator")))


@pytest.fixture
async def stage(
    control_plane: LocalCluster, operator_kubeconfig: Path, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[Stage]:
    connection = Connection(find_credentials(str(control_plane.kubeconfig)))
    api = KubernetesClient(connection)
    name = f"op-{uuid.uuid4().hex[:8]}"
    await make_namespace(api, name)
    made = Stage(api, control_plane, name, operator_kubeconfig, tmp_path)
    try:
        yield made
    finally:
        for process in made.processes:
            await process.stop()
        await connection.close()
    for process in made.processes:
        assert process.faults() == [], process.log()
