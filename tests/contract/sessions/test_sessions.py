"""What every store of sessions promises (engine.md §11)."""

import asyncio
import subprocess
import sys

import pytest

from pilothouse_engine.ports import SessionKey, StoredSession
from support.sessions import SessionStore

pytestmark = pytest.mark.anyio

KEY = SessionKey("ns", "customer-c-17", "investigate")

OTHERS = [
    SessionKey("ns-2", "customer-c-17", "investigate"),
    SessionKey("ns", "customer-c-18", "investigate"),
    SessionKey("ns", "customer-c-17", "reply"),
    SessionKey("ns", "customer-c-17investigate", ""),
    SessionKey("ns:customer-c-17", "investigate", ""),
]
HOSTILE = ["../../etc/passwd", "a/b", "*", "x" * 128, "zäh ☃ \U0001f600", "a b\n\x00", "{ns}:customer-c-17"]


async def test_what_nobody_stored_is_of_version_0_and_empty(store: SessionStore) -> None:
    assert await store.open().load(KEY) == StoredSession(0, b"")


async def test_what_is_stored_comes_back_to_another_run_byte_for_byte(store: SessionStore) -> None:
    content = bytes(range(256)) * 5000

    assert await store.open().replace(KEY, 0, content)

    assert await store.open().load(KEY) == StoredSession(1, content)


async def test_each_version_takes_the_place_of_the_one_before(store: SessionStore) -> None:
    sessions = store.open()
    for version in range(4):
        assert await sessions.replace(KEY, version, b"v%d" % (version + 1))

    assert await store.open().load(KEY) == StoredSession(4, b"v4")


@pytest.mark.parametrize("version", [0, 1, 3, 17])
async def test_a_wrong_version_stores_nothing(store: SessionStore, version: int) -> None:
    sessions = store.open()
    await sessions.replace(KEY, 0, b"one")
    await sessions.replace(KEY, 1, b"two")

    assert not await store.open().replace(KEY, version, b"lost")

    assert await sessions.load(KEY) == StoredSession(2, b"two")


async def test_what_was_never_stored_has_no_other_version_than_0(store: SessionStore) -> None:
    assert not await store.open().replace(KEY, 1, b"lost")

    assert await store.open().load(KEY) == StoredSession()


async def test_empty_content_is_a_version_like_any(store: SessionStore) -> None:
    assert await store.open().replace(KEY, 0, b"")

    assert await store.open().load(KEY) == StoredSession(1, b"")
    assert not await store.open().replace(KEY, 0, b"late")


@pytest.mark.parametrize("other", OTHERS, ids=str)
async def test_conversations_do_not_touch_each_other(store: SessionStore, other: SessionKey) -> None:
    sessions = store.open()
    await sessions.replace(KEY, 0, b"own")

    assert await sessions.load(other) == StoredSession()
    assert await sessions.replace(other, 0, b"other")
    assert await sessions.load(KEY) == StoredSession(1, b"own")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_session_may_be_named_by_any_text(store: SessionStore, name: str) -> None:
    key, other = SessionKey("ns", name, "step"), SessionKey("ns", f"{name}.", "step")

    assert await store.open().replace(key, 0, b"own")

    assert await store.open().load(key) == StoredSession(1, b"own")
    assert await store.open().load(other) == StoredSession()


async def test_of_two_that_store_at_once_one_does(store: SessionStore) -> None:
    await store.open().replace(KEY, 0, b"zero")

    done = await asyncio.gather(*(store.open().replace(KEY, 1, b"%d" % number) for number in range(8)))

    assert sorted(done) == [False] * 7 + [True]
    assert await store.open().load(KEY) == StoredSession(2, b"%d" % done.index(True))


@pytest.mark.slow
async def test_processes_that_add_at_once_lose_nothing(process_store: SessionStore) -> None:
    """Each process adds ten letters, loading again whenever another one was faster."""
    code = process_store.opening_code() + (
        "import asyncio, sys\n"
        "from pilothouse_engine.ports import SessionKey\n"
        f"key = SessionKey({KEY.namespace!r}, {KEY.session!r}, {KEY.step!r})\n"
        "async def add():\n"
        "    stored = await sessions.load(key)\n"
        "    return await sessions.replace(key, stored.version, stored.content + sys.argv[1].encode())\n"
        "async def main():\n"
        "    added = 0\n"
        "    while added < 10:\n"
        "        added += await add()\n"
        "asyncio.run(main())\n"
    )
    adders = [subprocess.Popen([sys.executable, "-c", code, letter]) for letter in "abc"]
    assert [adder.wait(60) for adder in adders] == [0, 0, 0]

    stored = await process_store.open().load(KEY)
    assert (stored.version, sorted(stored.content)) == (30, sorted(b"abc" * 10))
