"""The pod's process: settings, plan, journal, store, engine, and what it says at its end.

Exit codes: 0 the run has ended or was released, 1 a fault, 2 the pod or its plan is wrong, 3 the run is another
attempt's. What became of the run stands in `status.run`, never in the exit code.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from pilothouse_api import names
from pilothouse_api.structs import Plan
from pilothouse_engine.catalog import catalog_of
from pilothouse_engine.observers import Observer
from pilothouse_engine.ports import Frame, FrameSink, Journal, JournalCorrupt, Sessions
from pilothouse_engine.run import Attempt, AttemptEnd, Finished, Lost, Released, Stop, run_attempt
from pilothouse_engine.settings import Settings
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.api_server import ApiServer, Cluster
from pilothouse_runner.adapters.kubernetes_run_store import KubernetesRunStore
from pilothouse_runner.adapters.secrets import FileSecrets
from pilothouse_runner.assembly import named_environment, open_ports
from pilothouse_runner.collector import calm_collector
from pilothouse_runner.log_events import LogEvents
from pilothouse_runner.log_lines import LogLines, LogLinesHandler, place_of
from pilothouse_runner.settings import RunnerSettings, SettingsError, read_settings
from pilothouse_runner.telemetry import open_telemetry

if TYPE_CHECKING:
    from pilothouse_runner.adapters.redis_run import RedisRun
    from pilothouse_runner.adapters.telemetry.sending import Telemetry

EXIT_OK, EXIT_FAULT, EXIT_WRONG, EXIT_LOST = 0, 1, 2, 3

TERMINATION_LOG = Path("/dev/termination-log")
MAX_TERMINATION_CHARS = 1000


class PlanError(Exception):
    """The plan cannot be used; the message says why."""


class AllSinks(Value):
    """Hands each frame to several sinks, none of which waits or raises."""

    sinks: tuple[FrameSink, ...]

    def emit(self, frame: Frame) -> None:
        """Take a frame."""
        for sink in self.sinks:
            sink.emit(frame)


class Sigterm:
    """Remembers a SIGTERM from the first moment on: as process 1 of a container nobody else would.

    `asked` are those that came before.
    """

    def __init__(self, asked: Sequence[int] = ()) -> None:
        self._is_asked = False
        signal.signal(signal.SIGTERM, self._remember)
        self._is_asked = self._is_asked or bool(asked)

    def release(self, stop: Stop) -> None:
        """Hand the signal to a running attempt: it journals, publishes and lets go."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.release)
        if self._is_asked:
            stop.release()

    def _remember(self, number: int, frame: object) -> None:
        self._is_asked = True


def main(asked: Sequence[int] = ()) -> None:
    """Run one attempt and end the process; `asked` are signals to end that came while modules were loaded."""
    calm_collector()
    sigterm = Sigterm(asked)
    lines = LogLines(sys.stdout, {name: os.environ.get(env) for name, env in _COMMON_FIELDS.items()})
    logging.getLogger().addHandler(LogLinesHandler(lines))
    code, message = run_process(os.environ, lines, sigterm)
    lines.say("runner.exit", "info" if code in (EXIT_OK, EXIT_LOST) else "error", exitCode=code, message=message)
    lines.close()
    write_termination_message(message)
    # Threads of libraries must not keep a pod alive whose run has ended.
    os._exit(code)


_COMMON_FIELDS = {
    "namespace": names.ENV_RUN_NAMESPACE,
    "run": names.ENV_RUN_NAME,
    "attempt": names.ENV_ATTEMPT,
}


def run_process(environment: Mapping[str, str], lines: LogLines, sigterm: Sigterm) -> tuple[int, str]:
    """Return the exit code and one sentence."""
    try:
        settings = read_settings(environment)
        plan = load_plan(settings)
        server = ApiServer.in_cluster(environment)
        redis = open_redis(settings)
    except (SettingsError, PlanError) as error:
        return EXIT_WRONG, str(error)
    except KeyError as error:
        return EXIT_WRONG, f"the environment variable {error.args[0]} is not set: a runner runs in a pod"
    telemetry = open_telemetry(plan, settings.attempt, environment)
    how = "Fault"
    try:
        end = asyncio.run(run_in_cluster(settings, plan, server, lines, sigterm, telemetry, redis))
        how = type(end).__name__
    except JournalCorrupt as error:
        return EXIT_FAULT, f"the journal is corrupt: {error}"
    except Exception as error:  # a fault of ours: the attempt counts as crashed, and a person reads one sentence
        lines.say("runner.fault", "error", **describe_fault(error))
        return EXIT_FAULT, f"internal fault: {type(error).__name__}: {error}"
    finally:
        if telemetry is not None:
            telemetry.close(how)
    return describe_end(end)


def build_attempt(settings: RunnerSettings) -> Attempt:
    """Return the attempt as the engine knows it."""
    bounds = Settings(abort_grace_seconds=settings.abort_grace_seconds)
    return Attempt(settings.attempt, settings.settle, bounds)


async def run_in_cluster(
    settings: RunnerSettings,
    plan: Plan,
    server: ApiServer,
    lines: LogLines,
    sigterm: Sigterm,
    telemetry: "Telemetry | None" = None,
    redis: "RedisRun | None" = None,
) -> AttemptEnd:
    """Advance the run with the adapters of a pod."""
    stop = Stop()
    attempt = build_attempt(settings)
    observers: list[Observer] = [LogEvents(lines)]
    if telemetry is not None:  # the log comes first: a span that ends with a fact is still open for it
        observers = [LogEvents(lines, telemetry.span_ids), *telemetry.observers]
    sigterm.release(stop)
    store = KubernetesRunStore(server, settings.namespace, settings.name, settings.uid, settings.attempt)
    try:
        async with open_ports(
            journal=redis.journal if redis is not None else open_journal(settings),
            store=store,
            frames=lines if redis is None else AllSinks((lines, redis.frames)),
            secrets=FileSecrets(settings.secrets_path),
            environment=named_environment(plan, os.environ),
            find_cluster=lambda: Cluster(server, settings.namespace),
            sessions=open_sessions(settings, plan, redis),
        ) as ports:
            catalog = catalog_of(plan, ports, settings.plan_digest)
            if redis is not None:
                observers.append(redis.look_keeper(catalog))
            end = await run_attempt(catalog, ports, attempt, stop, observers)
        if redis is not None and is_over(end):
            await redis.retire()
        return end
    finally:
        await store.aclose()
        if redis is not None:
            await redis.aclose()


def is_over(end: AttemptEnd) -> bool:
    """Tell whether no attempt will follow this one."""
    return isinstance(end, Finished) or (isinstance(end, Lost) and end.reason == "Gone")


def load_plan(settings: RunnerSettings) -> Plan:
    """Return the plan, which must have the digest that the operator recorded and be this run's; raises PlanError."""
    try:
        text = settings.plan_path.read_text()
        plan = Plan.decode(text, settings.plan_digest)
    except OSError as error:
        raise PlanError(f"the plan {settings.plan_path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise PlanError(f"the plan cannot be used: {str(error)[:500]}") from None
    if plan.run.uid != settings.uid:
        raise PlanError(f"the plan is for the run with the uid {plan.run.uid}, this run's is {settings.uid}")
    return plan


def open_redis(settings: RunnerSettings) -> "RedisRun | None":
    """Return what of the run lies in Redis, None where nothing does; raises SettingsError."""
    if settings.redis is None:
        return None
    from pilothouse_runner.adapters.redis_run import RedisRun

    return RedisRun(settings.redis, settings.namespace, settings.uid)


def open_sessions(settings: RunnerSettings, plan: Plan, redis: "RedisRun | None") -> Sessions | None:
    """Return where conversations are kept: None for a run without one, and where nothing outlives a pod."""
    if plan.session is None:
        return None
    if redis is not None:
        return redis.sessions
    if settings.journal != "DurableFile":
        return None
    from pilothouse_runner.adapters.file_sessions import FileSessions

    return FileSessions(settings.journal_path / "sessions")


def open_journal(settings: RunnerSettings) -> Journal:
    """Return the journal that the pod was given."""
    if settings.journal == "Memory":
        from pilothouse_engine.testing.journal import MemoryJournal

        return MemoryJournal()
    from pilothouse_runner.adapters.file_journal import FileJournal

    return FileJournal(settings.journal_file, durable=settings.journal == "DurableFile")


def describe_end(end: AttemptEnd) -> tuple[int, str]:
    """Return the exit code and one sentence for how an attempt ended."""
    match end:
        case Finished(exit=run_exit):
            return EXIT_OK, f"the run ended with {run_exit.signal} ({run_exit.reason}) {run_exit.message}".strip()
        case Released(parked=parked):
            return EXIT_OK, f"released at turn {parked.turn}: {parked.reason}"
        case Lost(reason=reason, message=message):
            return EXIT_LOST, f"{reason}: {message}"
        case _:
            assert_never(end)


def describe_fault(error: BaseException) -> dict[str, str]:
    """Return a fault's type, text and place."""
    return {"type": type(error).__name__, "message": str(error), "place": place_of(error)}


def write_termination_message(message: str, path: Path = TERMINATION_LOG) -> None:
    """Leave one sentence for the pod's status, where the kubelet has made a file for it."""
    try:
        with path.open("r+") as file:
            file.write(message[:MAX_TERMINATION_CHARS])
    except OSError:
        # No kubelet: the log line has said it.
        return
