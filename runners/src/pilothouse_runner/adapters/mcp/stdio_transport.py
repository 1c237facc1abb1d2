"""Stdio below the SDK: a server in a process group of its own, which has nothing of the runner's.

Not the SDK's own transport: that one joins lines without a bound, lets the server write to the runner's log, and
leaves alive what a server that ended in time has started.
"""

import asyncio
import errno
import logging
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter

from pilothouse_api.structs import McpServer
from pilothouse_engine.mcp.schemas import clean_text
from pilothouse_runner.adapters.mcp.exchange import CANCELLED, CURRENT, OVERHEAD_BYTES, Exchange
from pilothouse_runner.adapters.mcp.transport import Streams, TransportUnusable

MAX_LINES_AHEAD = 64
MAX_LOGGED_BYTES = 4096
LAST_WORDS_SECONDS = 0.5
EXIT_SECONDS = 1.0
"""How long a server may take to end once its input is closed, and again once it is asked to terminate."""

log = logging.getLogger(__name__)


CHILD = Path(__file__).with_name("stdio_child.py")


class StdioTransport:
    """One server as a child process.

    `environment` is all of its environment, `folder` where it starts; `is_confined` keeps it from the runner's files.
    """

    def __init__(
        self, server: McpServer, environment: Mapping[str, str], folder: str = "/", *, is_confined: bool = False
    ) -> None:
        self._server = server
        self._environment = dict(environment)
        self._folder = folder
        self._is_confined = is_confined
        self._child: _Child | None = None
        self._waiting: set[Exchange] = set()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        """Start the server and give the streams of its session; leaving ends it and all that it started."""
        if self._server.headers or self._server.auth is not None:
            raise TransportUnusable("headers and auth belong to transport: StreamableHTTP; remove them")
        child = self._child = await self._start()
        send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        pump = asyncio.get_running_loop().create_task(child.pump(send), name="pilothouse-mcp-stdout")
        try:
            yield receive, _Writer(child)
        finally:
            try:
                await child.stop()
            finally:
                child.kill()
                child.close()
                pump.cancel()
                send.close()
                receive.close()
                _log_output(self._server.name, child.printed)

    def begin(self, exchange: Exchange) -> None:
        """Read, since somebody waits; a server that talks to nobody fills its own pipe."""
        self._waiting.add(exchange)
        if self._child is not None:
            self._child.read_for(self._waiting)

    def end(self, exchange: Exchange) -> None:
        """Read no more once nobody waits."""
        self._waiting.discard(exchange)
        if self._child is not None:
            self._child.read_for(self._waiting)

    def last_words(self) -> str:
        """Return how the process ended, where it has."""
        return self._child.end_text() if self._child is not None else ""

    async def _start(self) -> "_Child":
        command = self._server.command or []
        child = _Child()
        try:
            if self._is_confined:
                command = self._confined(command)
            await asyncio.get_running_loop().subprocess_exec(
                lambda: child, *command, env=self._environment, cwd=self._folder, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise TransportUnusable(f"its program {command[0][:100]!r} cannot be started: {reason}") from None
        child.read_for(self._waiting)
        return child

    def _confined(self, command: list[str]) -> list[str]:
        program = shutil.which(command[0], path=self._environment.get("PATH"))
        if program is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return [sys.executable, "-I", "-B", "-X", "utf8", str(CHILD), program, *command[1:]]


class _Child(asyncio.SubprocessProtocol):
    """The process: its lines, bounded as they arrive, and its end."""

    def __init__(self) -> None:
        self.printed = bytearray()
        self.exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._waiting: set[Exchange] = set()
        self._partial = bytearray()
        self._lines: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_output_closed = False
        self._is_output_over = False

    # ------------------------------------------------------------ events of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:  # read away to the end, so that printing never blocks
            self.printed += data[: MAX_LOGGED_BYTES - len(self.printed)]
            return
        if self._is_output_over:
            return
        for exchange in self._waiting:
            exchange.take(len(data))
        *lines, rest = (bytes(self._partial) + data if b"\n" in data else data).split(b"\n")
        if lines:
            self._lines.extend(lines)
            self._partial = bytearray(rest)
        else:
            self._partial += rest
        if len(self._partial) > max((e.max_bytes for e in self._waiting), default=0) + OVERHEAD_BYTES:
            self._end_output()  # the line is nobody's answer, and what follows it could not be told apart
            self.kill()
        self._flow()
        self._news.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._is_output_closed = True
            self._end_output_soon()
        self._writable.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.kill()  # what it left behind would outlive the run, and may hold its pipes open
        self._end_output_soon()
        self._writable.set()

    def pause_writing(self) -> None:
        """The server does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The server reads on."""
        self._writable.set()

    # ------------------------------------------------------------ in

    def read_for(self, waiting: set[Exchange]) -> None:
        """Read while there is somebody in `waiting`."""
        self._waiting = waiting
        self._flow()

    async def pump(self, send: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand on the messages, in their order, until no more can come."""
        async with send:
            while self._lines or not self._is_output_over:
                if not self._lines:
                    self._news.clear()
                    await self._news.wait()
                    continue
                line = self._lines.popleft()
                self._flow()
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    continue  # what is no message is a line of a log that went the wrong way
                try:
                    await send.send(SessionMessage(message))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the session has ended

    def _flow(self) -> None:
        assert self._transport is not None
        output = self._transport.get_pipe_transport(1)
        if not isinstance(output, asyncio.ReadTransport) or output.is_closing():
            return
        if self._waiting and len(self._lines) < MAX_LINES_AHEAD:
            output.resume_reading()
        else:
            output.pause_reading()

    def _end_output_soon(self) -> None:
        """End it once both are over, or a moment after the first.

        A process that has ended may have its last words in the pipe; one that closed its pipe will tell how it ended.
        """
        if self._is_output_closed and self.exited.is_set():
            self._end_output()
        else:
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._end_output)

    def _end_output(self) -> None:
        self._is_output_over = True
        self._news.set()

    # ------------------------------------------------------------ out

    async def write(self, data: bytes, exchange: Exchange | None) -> None:
        """Write one message; raises BrokenResourceError when the server is not there any more."""
        assert self._transport is not None
        stdin = self._transport.get_pipe_transport(0)
        if self.exited.is_set() or not isinstance(stdin, asyncio.WriteTransport) or stdin.is_closing():
            raise anyio.BrokenResourceError
        stdin.write(data)
        if stdin.is_closing():  # nobody holds the other end
            raise anyio.BrokenResourceError
        if exchange is not None:
            exchange.sent = True
        await self._writable.wait()

    # ------------------------------------------------------------ the end

    async def stop(self) -> None:
        """End the server: close its input, ask it to terminate, kill its group."""
        assert self._transport is not None
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        if not await self._ends_soon():
            self._signal(signal.SIGTERM)
            if not await self._ends_soon():
                self.kill()
                await self._ends_soon()

    async def _ends_soon(self) -> bool:
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self.exited.wait()
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        """Kill the process group: the server, and what it started and left behind."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes."""
        assert self._transport is not None
        self._transport.close()

    def end_text(self) -> str:
        """Return how the process ended, nothing while it has not."""
        code = self._transport.get_returncode() if self._transport is not None and self.exited.is_set() else None
        if code is None:
            return ""
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

    def _signal(self, number: int) -> None:
        assert self._transport is not None
        try:
            os.killpg(self._transport.get_pid(), number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left in it


class _Writer:
    """The write stream of a session: writes in the task of whoever sends, whose exchange is then at hand."""

    def __init__(self, child: _Child) -> None:
        self._child = child

    async def send(self, item: SessionMessage) -> None:
        """Write one message."""
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        exchange = CURRENT.get(None) if isinstance(item.message, JSONRPCRequest) else None
        await self._child.write(f"{text}\n".encode(), exchange)
        if isinstance(item.message, JSONRPCNotification) and item.message.method == CANCELLED:
            CURRENT.get().told.set()

    async def aclose(self) -> None:
        """Leave the pipe to the end of the session."""

    async def __aenter__(self) -> "_Writer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _log_output(name: str, printed: bytearray) -> None:
    if printed:
        from pilothouse_engine.guardrails.masks import mask_text  # its libraries are heavy

        shown = mask_text(printed.decode("utf-8", "replace"))
        log.info("MCP server %s printed: %s", name, clean_text(shown, MAX_LOGGED_BYTES))
