"""How the command line ends: exit codes, and errors that a person can act on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `--help` waits for whatever is imported here
    from pydantic import ValidationError

    from pilothouse_api.v1alpha1 import AgentRun

EXIT_SUCCEEDED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ABORTED = 3
EXIT_PARKED = 4
EXIT_NOT_FOUND = 5

_EXIT_OF_PHASE = {
    "Succeeded": EXIT_SUCCEEDED,
    "Failed": EXIT_FAILED,
    "Aborted": EXIT_ABORTED,
    "Paused": EXIT_PARKED,
    "AwaitingApproval": EXIT_PARKED,
}


class CliError(Exception):
    """One sentence, a next step, and the exit code."""

    def __init__(self, message: str, next_step: str = "", code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.code = code


class Forbidden(CliError):
    """A cluster refuses for want of a right."""


def exit_code(run: "AgentRun") -> int:
    """Return the exit code that says where a run stands; one that goes on without us counts as parked."""
    return _EXIT_OF_PHASE.get(run.status.phase or "", EXIT_PARKED)


def first_problem(error: "ValidationError") -> str:
    """Return the first thing that a model refuses: field, what, actual value."""
    first = error.errors()[0]
    field_path = ".".join(str(part) for part in first["loc"])
    return f"{field_path}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r:.80}"
