"""The cluster of a local run: the one that KUBECONFIG names, and no other."""

from pathlib import Path

import pytest

from pilothouse_cli.local.cluster import find_cluster
from pilothouse_engine.ports import ResourceFailure
from pilothouse_runner.adapters.api_server import Cluster

CONFIG = """
apiVersion: v1
kind: Config
current-context: dev
contexts: [{name: dev, context: {cluster: c, user: u, namespace: payments}}]
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443/", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t-1}}]
"""


def test_the_cluster_is_that_of_the_current_context(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(CONFIG)
    cluster = find_cluster({"KUBECONFIG": str(path)})
    assert isinstance(cluster, Cluster)
    assert (cluster.server.url, cluster.server.verify, cluster.namespace) == (
        "https://10.0.0.1:6443",
        False,
        "payments",
    )
    assert cluster.server.authorization is not None
    assert cluster.server.authorization() == "Bearer t-1"


@pytest.mark.parametrize("text", [None, "", "[1]", "{", CONFIG.replace("current-context: dev", "current-context: no")])
def test_a_kubeconfig_that_cannot_be_used_is_said(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    failure = find_cluster({"KUBECONFIG": str(path)})
    assert isinstance(failure, ResourceFailure)
    assert (failure.kind, failure.message.startswith("KUBECONFIG cannot be used: ")) == ("NoCluster", True)


def test_without_kubeconfig_there_is_no_cluster_even_where_a_file_stands_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(CONFIG)
    monkeypatch.setenv("HOME", str(tmp_path))
    failure = find_cluster({})
    assert isinstance(failure, ResourceFailure)
    assert failure.message.startswith("a local run has no cluster: set KUBECONFIG")
