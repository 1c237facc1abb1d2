"""One connection to a Redis, opened when it is needed and again when it was lost; nothing here waits without an end.

hiredis speaks the protocol; redis-py on top of it would add 130 modules to a start that a run's author waits for, and
its connection cannot say whether a command that failed had been sent. Requests are pipelined and answered in order, so
a caller that is cancelled leaves the connection usable: the reply that nobody waits for is read and dropped.
"""

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis

from pilothouse_engine.values import Value

CONNECT_SECONDS = 3.0
REPLY_SECONDS = 5.0
"""How long a command may take: a flush of its disk, and the ones before it."""
MOST_UNREAD = 512
"""Replies that Redis may owe before what nobody waits for is not sent any more."""
DEFAULT_PORT = 6379

Word = bytes | str | int

_pack: Callable[[Sequence[Word]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub wants one word


class RedisUnreachable(Exception):
    """There is no connection, or it was refused; nothing was sent."""


class RedisUnanswered(Exception):
    """Commands were sent, and their replies did not come: nobody knows whether they were executed."""


class RedisRefused(Exception):
    """Redis answered with an error and executed nothing; `code` is its first word, as OOM or READONLY."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]

    def sentence(self, address: str) -> str:
        """Return what a person can act on."""
        why = _REFUSALS.get(self.code) or f"it answered {str(self)[:200]!r}"
        return f"Redis at {address} refused: {why}"

    @property
    def is_other_type(self) -> bool:
        """Tell whether the key holds something else than was asked for; inside of a script other words come first."""
        return "WRONGTYPE" in str(self)[:200]


_REFUSALS = {
    "OOM": "its memory is full (maxmemory)",
    "MISCONF": "it cannot write to its disk",
    "READONLY": "it is a replica that takes no writes",
    "LOADING": "it is still reading its data from disk",
    "BUSY": "it is busy with a script",
    "NOAUTH": "it wants a user and a password, and the Secret has none",
    "NOPERM": "its user may not do this: a user is limited to the keys of its namespace",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "CLUSTERDOWN": "its cluster is down",
    "MOVED": "it is a node of a Redis Cluster, which is not supported",
}


class Script:
    """A script of one key, which Redis knows by its hash once it was sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()


class RedisAddress(Value):
    """Where a Redis is: a host and port, or a socket of this machine (`path`)."""

    host: str = ""
    port: int = DEFAULT_PORT
    path: str = ""
    is_tls: bool = False
    database: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse_address(url: str) -> RedisAddress:
    """Return the address of `redis://HOST[:PORT][/DATABASE]`, `rediss://…` (TLS) or `unix:///PATH`.

    Raises ValueError, also for a user or a password in it: an address stands in manifests and in logs.
    """
    parts = urlsplit(url)
    if "@" in url:
        raise ValueError("the address of Redis holds a user or a password: they belong into the Secret")
    if parts.query or parts.fragment:
        raise ValueError(f"the address {url[:80]!r} has a query: only host, port and database can be given")
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return RedisAddress(path=unquote(parts.path))
    database = parts.path.strip("/") or "0"
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or not database.isdecimal():
        raise ValueError(f"{url[:80]!r} is no address of a Redis: redis://HOST:PORT, rediss://HOST:PORT, unix:///PATH")
    port = parts.port if parts.port is not None else DEFAULT_PORT
    return RedisAddress(parts.hostname, port, is_tls=parts.scheme == "rediss", database=int(database))


class RedisLogin(Value):
    """The folder of a mounted Secret: `username`, `password` and, for TLS, `ca.crt`; read anew at each connect.

    Without `username` and `password` Redis is asked without them.
    """

    folder: Path

    def read(self) -> tuple[str, str] | None:
        """Return user and password; raises RedisUnreachable when one of them cannot be read."""
        user, password = self._file("username"), self._file("password")
        if password is None:
            return None
        return user or "default", password

    @property
    def ca_path(self) -> Path | None:
        """The file of authorities to trust in place of the machine's."""
        path = self.folder / "ca.crt"
        return path if path.exists() else None

    def _file(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text().rstrip("\r\n")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise RedisUnreachable(f"the file {name} of the Redis Secret cannot be read: {reason}") from None


class RedisClient:
    """Sends commands to one Redis."""

    def __init__(self, address: RedisAddress, login: RedisLogin | None = None) -> None:
        self._address = address
        self._login = login
        self._link: _Link | None = None
        self._opening = asyncio.Lock()

    @property
    def address(self) -> str:
        """Where it is, for messages."""
        return str(self._address)

    async def call(self, *command: Word, then: Sequence[Word] | None = None) -> Any:
        """Return the reply to a command: bytes, int, list or None.

        `then` is a command that is sent right behind it, whose reply is dropped: Redis executes both before it flushes
        its disk, once for both. Raises RedisUnreachable, RedisUnanswered, RedisRefused.
        """
        link = self._link
        if link is None or link.lost is not None:
            link = await self._open()
        return await link.call(command, then)

    async def run(self, script: Script, key: str, *arguments: Word, then: Sequence[Word] | None = None) -> Any:
        """Return what a script gives, which is sent whole where Redis has forgotten it; takes and raises as `call`."""
        try:
            return await self.call("EVALSHA", script.sha, 1, key, *arguments, then=then)
        except RedisRefused as error:
            if error.code != "NOSCRIPT":
                raise
        return await self.call("EVAL", script.text, 1, key, *arguments, then=then)

    def send(self, commands: Sequence[tuple[Word, ...]]) -> bool:
        """Send commands without waiting for what they give, which is dropped.

        Returns whether there is a connection that took them: not while it owes more than MOST_UNREAD replies.
        """
        link = self._link
        return link is not None and link.send(commands)

    async def aclose(self) -> None:
        """Close the connection; what was sent is still executed."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _open(self) -> "_Link":
        async with self._opening:
            if self._link is not None and self._link.lost is None:
                return self._link
            self._link = None
            link = await self._connect()
            try:
                await self._greet(link)
            except BaseException:
                link.close()
                raise
            self._link = link
            return link

    async def _connect(self) -> "_Link":
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if address.path:
                    _, link = await loop.create_unix_connection(lambda: _Link(str(address)), address.path)
                else:
                    _, link = await loop.create_connection(
                        lambda: _Link(str(address)), address.host, address.port, ssl=self._ssl_context()
                    )
                return link
        except TimeoutError:
            raise RedisUnreachable(f"Redis at {address} did not accept within {CONNECT_SECONDS:g} s") from None
        except ssl.SSLError as error:
            raise RedisUnreachable(f"Redis at {address}: TLS failed: {error.reason or error}") from None
        except OSError as error:
            raise RedisUnreachable(f"Redis at {address} cannot be reached: {error.strerror or error}") from None

    def _ssl_context(self) -> ssl.SSLContext | None:
        if not self._address.is_tls:
            return None
        ca_path = self._login.ca_path if self._login is not None else None
        return ssl.create_default_context(cafile=None if ca_path is None else str(ca_path))

    async def _greet(self, link: "_Link") -> None:
        try:
            login = self._login.read() if self._login is not None else None
            if login is not None:
                await link.call(("AUTH", *login))
            if self._address.database:
                await link.call(("SELECT", self._address.database))
        except RedisUnanswered as error:
            raise RedisUnreachable(str(error)) from None
        except RedisRefused as error:
            # Not its text: a server that does not know a command quotes what came with it, and that is the password.
            user = f" of the user {login[0]}" if login is not None else ""
            raise RedisUnreachable(f"Redis at {self._address} refused the login{user}: {error.code}") from None


class _Link(asyncio.Protocol):
    """One connection: what was sent, and who waits for the replies."""

    def __init__(self, address: str) -> None:
        self.lost: str | None = None
        """Why it is of no use any more."""
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._waiting: deque[asyncio.Future[Any] | None] = deque()

    async def call(self, command: Sequence[Word], then: Sequence[Word] | None = None) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self.lost is not None or self._transport is None:
            raise RedisUnreachable(self.lost or f"Redis at {self._address} is not connected")
        self._waiting.append(future)
        if then is None:
            self._transport.write(_pack(command))
        else:
            self._waiting.append(None)
            self._transport.write(_pack(command) + _pack(then))
        late = loop.call_later(REPLY_SECONDS, self._give_up, f"did not answer within {REPLY_SECONDS:g} s")
        try:
            return await future
        finally:
            late.cancel()

    def send(self, commands: Sequence[tuple[Word, ...]]) -> bool:
        if self.lost is not None or self._transport is None or len(self._waiting) + len(commands) > MOST_UNREAD:
            return False
        self._waiting.extend((None,) * len(commands))
        self._transport.write(b"".join(_pack(command) for command in commands))
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._end("was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                self._answer(reply)
        except hiredis.ProtocolError:
            self._give_up("does not speak the protocol of Redis")

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            self._give_up("answered what nobody has asked")
            return
        future = self._waiting.popleft()
        if future is None or future.done():
            return
        if isinstance(reply, hiredis.ReplyError):
            future.set_exception(RedisRefused(str(reply)))
        else:
            future.set_result(reply)

    def eof_received(self) -> None:
        """Let the transport close itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("closed the connection")

    def _give_up(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def _end(self, why: str) -> None:
        if self.lost is None:
            self.lost = f"Redis at {self._address} {why}"
        while self._waiting:
            future = self._waiting.popleft()
            if future is not None and not future.done():
                future.set_exception(RedisUnanswered(self.lost))


class _Nothing:
    """What the reader gives where a reply is not whole yet."""


_NOTHING = _Nothing()
