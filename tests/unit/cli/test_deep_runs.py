"""One run that is nested deeper than Python reads keeps nobody from steering the others."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pilothouse_cli.cluster.runs import ClusterRuns


@pytest.fixture
def as_python_starts() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("as_python_starts")
def test_who_talks_to_a_cluster_reads_as_deep_as_its_api_server(tmp_path: Path) -> None:
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [cluster]}
    config |= {"contexts": [context], "users": [{"name": "u", "user": {"token": "t"}}]}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    ClusterRuns.connect(kubeconfig=path)
    json.loads('{"a":' * 10_000 + "1" + "}" * 10_000)
