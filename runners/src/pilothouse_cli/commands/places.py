"""Which runs a verb means: those of this machine, or those of a namespace."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pilothouse_cli.exits import CliError
from pilothouse_cli.local.runs import LocalRuns
from pilothouse_cli.runs.fleets import Fleet
from pilothouse_cli.runs.port import Runs, not_found

if TYPE_CHECKING:
    from pilothouse_cli.cluster.runs import ClusterRuns


@dataclass(frozen=True, slots=True)
class Place:
    """Where a person says that runs are. A namespace, a context or a kubeconfig means a cluster."""

    namespace: str | None = None
    cluster: bool = False
    context: str | None = None
    kubeconfig: Path | None = None
    is_wide: bool = False
    """All namespaces are meant."""

    @property
    def is_cluster(self) -> bool:
        """Whether a cluster is meant for certain."""
        return self.cluster or self.is_wide or any((self.namespace, self.context, self.kubeconfig))

    def connect(self) -> "ClusterRuns":
        """Return the cluster's runs."""
        from pilothouse_cli.cluster.runs import ClusterRuns  # two seconds, paid only by who talks to a cluster

        return ClusterRuns.connect(self.namespace, self.context, self.kubeconfig, is_wide=self.is_wide)

    def runs_of(self, name: str) -> Runs:
        """Return the runs among which `name` is: local ones first, unless a cluster is meant."""
        local = LocalRuns.here()
        if not self.is_cluster:
            if local.has(name):
                return local
            if not has_kubeconfig():
                raise not_found(name, local.where)
        try:
            return self.connect()
        except CliError as error:
            if self.is_cluster:
                raise
            raise CliError(
                f"there is no run {name} in {local.where}, and {error.message}", error.next_step, error.code
            ) from None

    def fleet(self) -> Fleet:
        """Return the runs that a verb for many means: those that `list` means."""
        return self._all()

    def all_runs(self) -> Runs:
        """Return the runs that `list` means: local ones where this folder has any, unless a cluster is meant."""
        return self._all()

    def _all(self) -> "LocalRuns | ClusterRuns":
        local = LocalRuns.here()
        is_empty = not local.all() and not local.unreadable()
        return self.connect() if self.is_cluster or (is_empty and has_kubeconfig()) else local


def has_kubeconfig() -> bool:
    """Tell whether there is a cluster to ask."""
    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return any(Path(path).is_file() for path in paths.split(os.pathsep) if path)
