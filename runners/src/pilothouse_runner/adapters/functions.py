"""Author code in a child process that has nothing of the runner's: no token, no key, no secret, no open file."""

import asyncio
import json
import logging
import os
import signal
import sys
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
        child = _Child(request.max_bytes + REPLY_OVERHEAD)
        try:
            transport = await self._start(child)
        except OSError as error:
            return FunctionFailure("NotStarted", f"a child process cannot be started: {error.strerror}")
        try:
            async with asyncio.timeout(request.timeout):
                child.feed(payload)
                await child.answered.wait()
        except TimeoutError:
            return FunctionFailure("Timeout", f"it took longer than {request.timeout:g} s and was killed")
        finally:
            child.kill()
            transport.close()
            await child.exited.wait()
            _log_output(request.callable, child.printed)
        if child.is_flooded:
            return FunctionFailure("TooLarge", f"it sent more than {request.max_bytes:,} bytes")
        line, end, _ = child.reply.partition(b"\n")
        return _reply_of(bytes(line)) if end else FunctionFailure("Died", _say_end(transport.get_returncode()))

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

    async def _start(self, child: "_Child") -> asyncio.SubprocessTransport:
        # -I: no variable, no user folder and no working directory adds to what the child imports.
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: child,
            *(sys.executable, "-I", "-B", "-X", "utf8", str(CHILD)),
            env=self._environment,
            cwd="/",
            start_new_session=True,
        )
        return transport


class _Child(asyncio.SubprocessProtocol):
    """One child: what it sends, bounded as it arrives, and when it ends.

    Not `asyncio.subprocess.Process`: its `wait` waits for the pipes too, and whoever escaped the process group may
    hold those open for ever.
    """

    def __init__(self, max_reply_bytes: int) -> None:
        self.reply = bytearray()
        self.printed = bytearray()
        self.is_flooded = False
        self.answered = asyncio.Event()
        """A line came, or none can come any more."""
        self.exited = asyncio.Event()
        self._max_reply_bytes = max_reply_bytes
        self._transport: asyncio.SubprocessTransport | None = None
        self._is_reply_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def feed(self, payload: bytes) -> None:
        """Write the request; a child that ends without reading it is told by how it ends."""
        assert self._transport is not None
        stdin = self._transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(payload)
        stdin.write_eof()

    def kill(self) -> None:
        """Kill the process group: the child, and what it started and left behind."""
        assert self._transport is not None
        try:
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left in it

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:  # read away to the end, so that printing never blocks
            self.printed += data[: MAX_LOGGED_BYTES - len(self.printed)]
        elif not self.answered.is_set():
            self.reply += data
            self.is_flooded = len(self.reply) > self._max_reply_bytes
            if self.is_flooded or b"\n" in data:
                self.answered.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._is_reply_closed = True
            self._end_if_over()

    def process_exited(self) -> None:
        self.exited.set()
        self.kill()  # what it left behind may hold the pipe of the reply open
        self._end_if_over()

    def _end_if_over(self) -> None:
        # A child that closed its pipe has until the deadline to end; one that ended may have a reply in the pipe.
        if self._is_reply_closed and self.exited.is_set():
            self.answered.set()


def _log_output(name: str, printed: bytearray) -> None:
    if printed:
        from pilothouse_engine.guardrails.masks import mask_text  # its libraries are heavy

        shown = mask_text(printed.decode("utf-8", "replace"))
        log.info("%s printed: %s", name, printable(shown, MAX_LOGGED_BYTES))


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


def _say_end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by signal {-code} before it returned"
    return f"its process ended with exit code {code} before it returned"
