"""Author code in a child process that has nothing of the runner's: no token, no key, no secret, no open file."""

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pilothouse_engine.ports import FunctionFailure, FunctionReply, FunctionRequest
from pilothouse_engine.strict_json import JsonError, parse_json, printable

CHILD = Path(__file__).with_name("function_child.py")
REPLY_OVERHEAD = 4096
MAX_LOGGED_BYTES = 4096
DEFAULT_MAX_MEMORY_BYTES = 512 << 20

_BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
_OURS = "PILOTHOUSE_"
_FAILURE_KINDS = frozenset(get_args(get_type_hints(FunctionFailure)["kind"]))

log = logging.getLogger(__name__)


class ProcessFunctions:
    """Runs each callable in a process group of its own, which is killed when it ends, is late, or is cancelled.

    `environment` is what `runTemplate.env` names; nothing else of the runner's environment reaches the child.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
    ) -> None:
        named = {name: value for name, value in (environment or {}).items() if not name.startswith(_OURS)}
        self._environment = {**_BASE_ENVIRONMENT, **named}
        self._max_memory_bytes = max_memory_bytes

    async def run(self, request: FunctionRequest) -> FunctionReply | FunctionFailure:
        """Return what the callable returned or why it returned nothing."""
        try:
            payload = self._encode(request)
        except (TypeError, ValueError, RecursionError) as error:
            return FunctionFailure("Invalid", f"the arguments are no JSON: {error}")
        try:
            process = await self._start(request)
        except OSError as error:
            return FunctionFailure("Died", f"a child process cannot be started: {error.strerror}")
        try:
            async with asyncio.timeout(request.timeout):
                line = await _talk(process, payload, request.callable)
        except TimeoutError:
            return FunctionFailure("Timeout", f"it took longer than {request.timeout:g} s and was killed")
        except asyncio.LimitOverrunError:
            return FunctionFailure("TooLarge", f"it sent more than {request.max_bytes:,} bytes")
        finally:
            _kill_group(process)
            await process.wait()
        return _reply_of(line) if line is not None else FunctionFailure("Died", _say_end(process))

    def _encode(self, request: FunctionRequest) -> bytes:
        value = {
            "callable": request.callable,
            "source": request.source,
            "arguments": dict(request.arguments),
            "timeout": request.timeout,
            "max_bytes": request.max_bytes,
            "max_memory_bytes": self._max_memory_bytes,
        }
        return json.dumps(value, allow_nan=False).encode()

    async def _start(self, request: FunctionRequest) -> Process:
        # -I: no variable, no user folder and no working directory adds to what the child imports.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-X", "utf8", str(CHILD)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE if log.isEnabledFor(logging.INFO) else DEVNULL,
            env=self._environment,
            cwd="/",
            start_new_session=True,
            limit=request.max_bytes + REPLY_OVERHEAD,
        )


async def _talk(process: Process, payload: bytes, name: str) -> bytes | None:
    """Return the reply line, or None where the child ended without one; raises LimitOverrunError."""
    assert process.stdin is not None and process.stdout is not None
    talking = [asyncio.create_task(_feed(process.stdin, payload)), asyncio.create_task(_log_output(process, name))]
    reading = asyncio.create_task(process.stdout.readuntil(b"\n"))
    ending = asyncio.create_task(process.wait())
    try:
        await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            _kill_group(process)  # what it left behind may hold the pipe open
        return await reading
    except asyncio.IncompleteReadError:
        await ending  # it closed its end of the pipe; it has until the deadline to end
        return None
    finally:
        for task in (*talking, reading, ending):
            task.cancel()
        await asyncio.gather(*talking, reading, ending, return_exceptions=True)


async def _feed(stdin: asyncio.StreamWriter, payload: bytes) -> None:
    try:
        stdin.write(payload)
        await stdin.drain()
        stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended before it had read everything; how it ended says more


async def _log_output(process: Process, name: str) -> None:
    """Log the beginning of what the author's code prints, and read the rest away so that it never blocks."""
    if process.stderr is None:
        return
    head = b""
    try:
        while chunk := await process.stderr.read(65536):
            head += chunk[: MAX_LOGGED_BYTES - len(head)]
    finally:
        if head:
            log.info("%s printed: %s", name, printable(head.decode("utf-8", "replace"), MAX_LOGGED_BYTES))


def _kill_group(process: Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left in it


def _reply_of(line: bytes) -> FunctionReply | FunctionFailure:
    """Return the reply in a line; the author's code could have written it, so nothing of it is trusted."""
    try:
        reply: Any = parse_json(line.decode())
    except (JsonError, UnicodeDecodeError) as error:
        return FunctionFailure("Invalid", f"it returned what is no JSON: {error}")
    match reply:
        case {"failure": str(kind), "message": str(message)} if kind in _FAILURE_KINDS:
            return FunctionFailure(kind, printable(message, 500))  # type: ignore[arg-type]
        case {"output": dict(output), "signal": str(signal_)}:
            return FunctionReply(output, signal_)
        case {"output": dict(output)}:
            return FunctionReply(output)
        case {"signal": str(signal_)}:
            return FunctionReply(None, signal_)
        case _:
            return FunctionFailure("Invalid", "its reply has neither output nor signal")


def _say_end(process: Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"its process was killed by signal {-code} before it returned"
    return f"its process ended with exit code {code} before it returned"
