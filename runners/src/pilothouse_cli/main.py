"""The program: all commands of `program`, and how it ends whatever goes wrong."""

import logging
import os
import sys

import typer

from pilothouse_cli.exits import EXIT_FAILED, CliError
from pilothouse_cli.program import approving, authoring, inspecting, running, steering
from pilothouse_cli.program.options import spoken_name

app = typer.Typer(
    name="pilothouse",
    help="Bounded, supervised, steerable LLM agents: run them here, steer them here and in a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (running, inspecting, steering, approving, authoring):
    app.add_typer(group.commands)


def main() -> None:
    """Run one command and end the process; whatever goes wrong is said in a sentence."""
    from pilothouse_cli.terminal import prepare_streams

    prepare_streams()
    if not os.environ.get("PILOTHOUSE_DEBUG"):
        logging.getLogger().addHandler(logging.NullHandler())  # libraries do not speak to the person
    try:
        app(prog_name=spoken_name())
    except CliError as error:
        sys.exit(_fail(error.message, error.next_step, error.code))
    except OSError as error:  # a stream that takes nothing more, a file that cannot be read
        if os.environ.get("PILOTHOUSE_DEBUG"):
            raise
        sys.exit(_fail(f"the system refuses: {error}", "PILOTHOUSE_DEBUG=1 shows where", EXIT_FAILED))
    except Exception as error:  # a fault of ours: one sentence, and the traceback for who asks for it
        if os.environ.get("PILOTHOUSE_DEBUG"):
            raise
        said = f"internal fault: {type(error).__name__}: {error}"
        sys.exit(_fail(said, "PILOTHOUSE_DEBUG=1 shows where", EXIT_FAILED))


def _fail(message: str, next_step: str, code: int) -> int:
    from pilothouse_cli.terminal import clean, say

    say(f"error: {clean(message)}")
    if next_step:
        say(f"next:  {clean(next_step)}")
    return code
