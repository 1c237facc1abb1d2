"""A real API server that knows AgentRuns, and stores on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilothouse_runner.adapters.api_server import ApiServer
from pilothouse_runner.adapters.kubernetes_run_store import KubernetesRunStore
from support.agentruns import Administrator, StoredRun
from support.cluster import LocalCluster
from support.runner_process import RunnerPod

CRDS = Path(__file__).resolve().parents[3] / "crds"


@pytest.fixture(scope="session")
def crds(control_plane: LocalCluster) -> LocalCluster:
    files = [argument for file in sorted(CRDS.glob("*.yaml")) for argument in ("-f", str(file))]
    control_plane.run_tool("kubectl", "apply", "--server-side", *files)
    control_plane.wait_established("crd", "--all")
    return control_plane


@pytest.fixture
def administrator(crds: LocalCluster) -> Iterator[Administrator]:
    administrator = Administrator(crds)
    yield administrator
    administrator.close()


@pytest.fixture
def server(crds: LocalCluster, tmp_path: Path) -> ApiServer:
    token = tmp_path / "token"
    token.write_text(crds.token + "\n")
    return ApiServer(crds.url, token, crds.ca_path)


@pytest.fixture
def open_store(server: ApiServer) -> Callable[..., KubernetesRunStore]:
    def open_it(run: StoredRun, attempt: int = 1, server: ApiServer = server) -> KubernetesRunStore:
        return KubernetesRunStore(server, "default", run.name, run.uid, attempt)

    return open_it


@pytest.fixture
def pod_of(administrator: Administrator, crds: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., RunnerPod]]:
    pods: list[RunnerPod] = []

    def make(plan: dict[str, Any]) -> RunnerPod:
        pod = RunnerPod(tmp_path, crds, administrator.create())
        pod.write_plan(plan)
        pods.append(pod)
        return pod

    yield make
    for pod in pods:
        pod.stop_all()
