"""Replies of Redis whose size is bounded while they are read: runners write there, and may write anything.

A parser of redis-py reads each reply of a stream under the `Bound` of the request that waits for it. An entry that is
too long is read past and never held; behind the bound of the whole reply nothing more is held.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from redis._parsers import _AsyncRESP2Parser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError

PIECE_BYTES = 64 * 1024
MOST_PASSED_BYTES = 64 * 1024 * 1024
"""What is read past in one reply: it costs time and no memory. Behind it the connection is given up."""
VALUE_BYTES = 16
"""What a value counts beside its text."""


class TooMuch(RedisError):
    """A reply holds more than anybody reads past."""


class TooLong:
    """Stands for the fields of an entry that are longer than its bound."""


class Cut(list[Any]):
    """An array whose end is not held, since the reply's bound was reached in it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What is held of a reply that is made of entries of streams."""

    entry_bytes: int
    """Longest entry: its fields' names and values."""
    reply_bytes: int
    """All of it; the entry that reaches it is held yet."""
    depth: int = 1
    """In how many arrays an entry is: 1 of XRANGE, 3 of XREAD."""


_PLAIN = Bound(entry_bytes=PIECE_BYTES, reply_bytes=PIECE_BYTES)
_BOUND: ContextVar[Bound] = ContextVar("bound of a reply", default=_PLAIN)


@contextmanager
def bounded(bound: Bound) -> Iterator[None]:
    """Set what is held of replies that this task waits for, while the context lasts."""
    token = _BOUND.set(bound)
    try:
        yield
    finally:
        _BOUND.reset(token)


class BoundedParser(_AsyncRESP2Parser):
    """Reads replies of RESP 2. A reply that breaks off is not gone on with: redis-py gives its connection up."""

    _bound = _PLAIN
    _held = 0
    _passed = 0

    async def read_response(self, disable_decoding: bool = False) -> Any:
        """Return one reply: bytes, numbers, None, lists (`Cut` ones too), TooLong in place of fields, or an error."""
        if not self._connected:
            raise RedisConnectionError("Connection closed by server.")
        self._bound, self._held, self._passed = _BOUND.get(), 0, 0
        return await self._reply(0)

    async def _reply(self, depth: int) -> Any:
        kind, rest = await self._head()
        match kind:
            case b"-":
                error = self.parse_error(rest.decode("utf-8", "replace"))  # type: ignore[no-untyped-call]
                if isinstance(error, RedisConnectionError):
                    raise error
                return error
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                return await self._text(int(rest))
            case b"*":
                return await self._array(int(rest), depth)
            case _:
                raise InvalidResponse(f"Redis said {kind + rest[:20]!r}")

    async def _array(self, length: int, depth: int) -> Any:
        if length < 0:
            return None
        if depth == self._bound.depth + 1:
            return await self._fields(length)
        items: list[Any] = []
        for number in range(length):
            if depth < self._bound.depth and self._held >= self._bound.reply_bytes:
                await self._pass(length - number)
                return Cut(items)
            items.append(await self._reply(depth + 1))
        return items

    async def _fields(self, length: int) -> Any:
        """Return the names and values of an entry, or TooLong; they are texts."""
        fields: list[Any] = []
        size = 0
        for number in range(length):
            kind, rest = await self._head()
            size += VALUE_BYTES + max(0, int(rest))
            if kind != b"$" or size > self._bound.entry_bytes:
                await self._pass_one(kind, rest)
                await self._pass(length - number - 1)
                self._held += VALUE_BYTES
                return TooLong
            fields.append(await self._text(int(rest)))
        return fields

    async def _text(self, length: int) -> bytes | None:
        if length < 0:
            return None
        self._held += VALUE_BYTES + length
        if length > max(self._bound.entry_bytes, PIECE_BYTES):
            raise TooMuch(f"a text of a reply has {length} bytes, more than the {self._bound.entry_bytes} of an entry")
        return (await self._exactly(length + 2))[:-2]

    async def _pass(self, count: int) -> None:
        """Read past so many values, whatever is in them."""
        while count:
            kind, rest = await self._head()
            count += -1 + await self._pass_one(kind, rest)

    async def _pass_one(self, kind: bytes, rest: bytes) -> int:
        """Read past a value whose head is known; return how many values follow that are its own."""
        self._count_passed(VALUE_BYTES)
        if kind == b"*":
            return max(0, int(rest))
        left = int(rest) + 2 if kind == b"$" and int(rest) >= 0 else 0
        self._count_passed(left)
        while left:
            left -= len(await self._exactly(min(left, PIECE_BYTES)))
        return 0

    def _count_passed(self, size: int) -> None:
        self._passed += size
        if self._passed > MOST_PASSED_BYTES:
            raise TooMuch(f"a reply is longer than its bound by more than {MOST_PASSED_BYTES} bytes")

    async def _head(self) -> tuple[bytes, bytes]:
        assert self._stream is not None
        try:
            line: bytes = await self._stream.readline()
        except ValueError as error:
            raise InvalidResponse("Redis sent a line without an end") from error
        if not line.endswith(b"\r\n"):
            raise RedisConnectionError("Connection closed by server.")
        return line[:1], line[1:-2]

    async def _exactly(self, length: int) -> bytes:
        assert self._stream is not None
        try:
            data: bytes = await self._stream.readexactly(length)
        except EOFError as error:
            raise RedisConnectionError("Connection closed by server.") from error
        return data
