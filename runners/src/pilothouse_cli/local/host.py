"""The host of local runs: goes on with one in this process, and lets go of it at Ctrl-C."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pilothouse_api import structs
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan
from pilothouse_cli.exits import EXIT_FAILED, EXIT_USAGE, CliError
from pilothouse_cli.local.cluster import find_cluster
from pilothouse_cli.local.creation import LOCAL_PLATFORM, load_plan, next_attempt
from pilothouse_cli.local.state import STATE_FOLDER, SUPERVISORS, RunFolder, RunIsGone, RunIsLive
from pilothouse_cli.local.store import LocalRunStore
from pilothouse_cli.runs.port import not_found
from pilothouse_cli.terminal import say
from pilothouse_control.lineage import delegates_of
from pilothouse_engine.catalog import catalog_of
from pilothouse_engine.observers import Observer
from pilothouse_engine.ports import Frame, FrameSink, JournalCorrupt, SecretUnavailable
from pilothouse_engine.run import Attempt, AttemptEnd, Lost, Stop, run_attempt
from pilothouse_runner.adapters.file_journal import FileJournal
from pilothouse_runner.adapters.file_sessions import FileSessions
from pilothouse_runner.adapters.secrets import FileSecrets
from pilothouse_runner.assembly import McpHost, named_environment, open_ports
from pilothouse_runner.telemetry import open_telemetry

EXIT_KILLED = 130


class SilentSink:
    """Tells nothing: a program reads the result, or somebody looks at another run."""

    def emit(self, frame: Frame) -> None:
        """Drop one frame."""


class LocalSecrets:
    """Secrets on a laptop: an environment variable, else a file below `.pilothouse/secrets`."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._files = FileSecrets(folder)
        self._folder = folder
        self._environment = environment

    def read(self, name: str, key: str) -> str:
        """Return the value; raises SecretUnavailable that says where it is looked for."""
        variable = secret_variable(name, key)
        if variable in self._environment:
            return self._environment[variable]
        try:
            return self._files.read(name, key)
        except SecretUnavailable as error:
            raise SecretUnavailable(f"{error}: set {variable}, or write {self._folder / name / key}") from None


def secret_variable(name: str, key: str) -> str:
    """Return the environment variable that holds one key of a Secret on a laptop."""
    word = "".join(letter if letter.isalnum() else "_" for letter in f"{name}_{key}")
    return f"PILOTHOUSE_SECRET_{word.upper()}"


def advance(
    folder: RunFolder,
    sink: FrameSink,
    on_release: Callable[[], None] = lambda: None,
    observers: Sequence[Observer] = (),
) -> AttemptEnd:
    """Make the next attempt of a run in this process, until it ends or is let go; raises CliError.

    SIGINT, SIGTERM and SIGHUP (its terminal is gone) release the run, `on_release` tells a person; a second SIGINT
    kills the process, and the journal has what is needed.
    """
    try:
        with folder.hold():
            plan = load_plan(folder)
            attempt = next_attempt(folder)
            return _traced(folder, plan, Attempt(attempt), sink, on_release, observers)
    except RunIsGone:
        raise not_found(folder.name, str(folder.path.parent)) from None
    except RunIsLive as live:
        raise CliError(
            f"run {folder.name} is live in process {live.pid}: two processes cannot advance one run",
            f"pilothouse watch {folder.name}",
            EXIT_USAGE,
        ) from None
    except JournalCorrupt as error:
        raise CliError(f"the journal of run {folder.name} is damaged: {error}", "", EXIT_FAILED) from None


def advance_silently(folder: RunFolder) -> None:
    """Advance a run here without a word: for directives that end it."""
    advance(folder, SilentSink())


def _traced(
    folder: RunFolder,
    plan: Plan,
    attempt: Attempt,
    sink: FrameSink,
    on_release: Callable[[], None],
    observers: Sequence[Observer],
) -> AttemptEnd:
    """Run an attempt, with telemetry where the environment asks for it."""
    telemetry = open_telemetry(structs.Plan.read(plan.to_raw()), attempt.number, os.environ)
    if telemetry is None:
        return asyncio.run(_attempt(folder, plan, attempt, sink, on_release, observers))
    how = "Fault"
    try:
        end = asyncio.run(_attempt(folder, plan, attempt, sink, on_release, (*observers, *telemetry.observers)))
        how = type(end).__name__
        return end
    finally:
        telemetry.close(how)


async def _attempt(
    folder: RunFolder,
    plan: Plan,
    attempt: Attempt,
    sink: FrameSink,
    on_release: Callable[[], None],
    observers: Sequence[Observer],
) -> AttemptEnd:
    stop = Stop()
    _release_on_signals(stop, on_release)
    if not delegates_of(plan):
        return await _once(folder, plan, attempt, stop, sink, observers)
    from pilothouse_cli.local.children import LocalFamily  # manifests and their validation, for runs that delegate

    async def once(one: RunFolder, its_plan: Plan, number: Attempt, its_stop: Stop) -> AttemptEnd:
        is_root = one.name == folder.name
        seen_by = (sink, observers) if is_root else (SilentSink(), ())
        return await _once(one, its_plan, number, its_stop, *seen_by)

    return await LocalFamily(folder.path.parents[1], LOCAL_PLATFORM, once, stop).advance(folder, plan, attempt)


async def _once(
    folder: RunFolder, plan: Plan, attempt: Attempt, stop: Stop, sink: FrameSink, observers: Sequence[Observer]
) -> AttemptEnd:
    """Make one attempt of one run."""
    journal = FileJournal(folder.journal_path, durable=True)
    store = LocalRunStore(folder, plan.run.uid, attempt.number)
    secrets = LocalSecrets(Path(STATE_FOLDER) / "secrets")
    carried = structs.Plan.read(plan.to_raw())
    environment = named_environment(carried, os.environ)

    async def alone() -> AttemptEnd:
        async with open_ports(
            journal=journal,
            store=store,
            frames=sink,
            secrets=secrets,
            environment=environment,
            mcp_host=local_mcp_host(environment, os.environ),
            find_cluster=find_cluster,
            sessions=FileSessions(Path(STATE_FOLDER) / "sessions"),
        ) as ports:
            catalog = catalog_of(carried, ports, text_digest(plan.encode()))
            return await run_attempt(catalog, ports, attempt, stop, observers)

    try:
        if not (folder.path / SUPERVISORS).exists():
            return await alone()
        from pilothouse_cli.local.supervision import advance_supervised  # rules, for runs that somebody watches

        return await advance_supervised(folder, plan, stop, sink, secrets, alone)
    finally:
        journal.close()


def local_mcp_host(named: Mapping[str, str], environment: Mapping[str, str]) -> McpHost:
    """Return what MCP servers find on a laptop: a person's programs in a person's folder, and no token of a pod.

    `python3` is the one that Pilothouse runs on, as it is in the runner's image. Of the person's environment programs
    get what they are found by and nothing else: keys lie in the rest.
    """
    found_by = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    theirs = {name: environment[name] for name in ("HOME", "LANG", "TMPDIR") if name in environment}
    return McpHost({**theirs, "PATH": found_by, **named}, folder=str(Path.cwd()), is_confined=False, tokens=None)


def _release_on_signals(stop: Stop, on_release: Callable[[], None]) -> None:
    def interrupt() -> None:
        if stop.is_asked:
            say("\nkilled; the journal has what is done")
            os._exit(EXIT_KILLED)
        stop.release()
        on_release()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, stop.release)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants the run to go on without its terminal
        loop.add_signal_handler(signal.SIGHUP, stop.release)


def lost_error(name: str, lost: Lost) -> CliError:
    """Return the error for a run that was taken or removed while this process advanced it."""
    return CliError(f"run {name} is not this process's any more: {lost.message}", "pilothouse list", EXIT_FAILED)
