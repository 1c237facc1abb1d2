"""What was observed of runs in a cluster: the operator API reads it from the store of journals."""

from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, CliError
from pilothouse_cli.recordings import Recording


def record_in_cluster(place: Place, name: str, api: str | None) -> Recording:
    """Return what was kept of a run's looks; raises CliError."""
    raise CliError(
        f"what was observed of run {name} lies in the cluster's Redis, which only the operator API reads",
        "name its address: --api URL",
        EXIT_FAILED,
    )
