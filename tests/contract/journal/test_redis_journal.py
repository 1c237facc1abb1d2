"""What the Redis journal does about servers that die, answers that are lost, and refusals."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from pilothouse_api.batches import Batch, encode_batch
from pilothouse_api.names import redis_run_prefix
from pilothouse_engine.ports import (
    Fenced,
    JournalCorrupt,
    JournalUnavailable,
    RawEntry,
    SessionKey,
    StoredSession,
)
from pilothouse_runner.adapters import redis_client, redis_journal
from pilothouse_runner.adapters.redis_client import RedisAddress, RedisClient, RedisLogin, parse_address
from pilothouse_runner.adapters.redis_journal import RedisJournal
from pilothouse_runner.adapters.redis_sessions import RedisSessions
from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio

PREFIX = redis_run_prefix("team-a", "u-1")
KEY = f"{PREFIX}journal"
GOLDEN_CHART = Path(__file__).resolve().parents[2] / "golden" / "chart" / "redis.yaml"


def entry(number: int) -> RawEntry:
    return {"fact": "noted", "number": number}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    server.ask("SCRIPT", "LOAD", redis_journal._APPEND.text)  # as after the first append: answers are counted here
    yield server
    server.close()


def open_journal(url: str, login: RedisLogin | None = None) -> RedisJournal:
    return RedisJournal(RedisClient(parse_address(url), login), PREFIX)


async def numbers(url: str) -> list[int]:
    return [e["number"] for e in await open_journal(url).read()]


@asynccontextmanager
async def proxy(server: RedisServer, folder: Path, pass_answer: Callable[[int], Awaitable[bool]]) -> AsyncIterator[str]:
    """Give the address of a proxy that hangs up in place of each answer of which `pass_answer(number)` says no."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        answers, commands = await asyncio.open_unix_connection(str(server.path))
        while data := await reader.read(1 << 20):
            commands.write(data)
            answer = await answers.read(1 << 20)
            count += 1
            if not await pass_answer(count):
                break
            writer.write(answer)
        commands.close()
        writer.close()

    path = server.path.with_name("proxy")
    async with await asyncio.start_unix_server(serve, path):
        yield f"unix://{path}"


async def test_an_append_whose_answer_is_lost_is_there_once_and_the_run_goes_on(
    server: RedisServer, tmp_path: Path
) -> None:
    async def pass_answer(number: int) -> bool:
        return number % 3 != 0

    async with proxy(server, tmp_path, pass_answer) as url:
        journal = open_journal(url)
        for number in range(20):
            await journal.append(1, number, [entry(number)])

    assert await numbers(server.url) == list(range(20))


async def test_an_append_whose_answers_are_all_lost_is_unavailable_and_then_found_done(
    server: RedisServer, tmp_path: Path
) -> None:
    async def pass_answer(number: int) -> bool:
        return number > 4

    async with proxy(server, tmp_path, pass_answer) as url:
        journal = open_journal(url)
        with pytest.raises(JournalUnavailable, match="closed the connection"):
            await journal.append(1, 0, [entry(0)])
        with pytest.raises(JournalUnavailable):
            await journal.append(1, 0, [entry(0)])
        await journal.append(1, 0, [entry(0)])
        await journal.append(1, 1, [entry(1)])

    assert await numbers(server.url) == [0, 1]


async def test_another_process_of_the_same_number_cannot_take_an_append_for_its_own(
    server: RedisServer, tmp_path: Path
) -> None:
    async def pass_answer(number: int) -> bool:
        return False

    async with proxy(server, tmp_path, pass_answer) as url:
        journal = open_journal(url)
        with pytest.raises(JournalUnavailable):
            await journal.append(1, 0, [entry(0)])
        await open_journal(server.url).append(1, 1, [entry(1)])
        server.ask("DEL", KEY)
        await open_journal(server.url).append(1, 0, [entry(0)])
    journal._client = RedisClient(parse_address(server.url))

    with pytest.raises(Fenced, match="holds 1 entries, attempt 1 expects 0"):
        await journal.append(1, 0, [entry(0)])


async def test_an_append_whose_answer_is_lost_is_fenced_once_a_newer_attempt_built_on_it(
    server: RedisServer, tmp_path: Path
) -> None:
    async def pass_answer(number: int) -> bool:
        if number > 1:
            return True
        await open_journal(server.url).append(2, 1, [entry(1)])
        return False

    async with proxy(server, tmp_path, pass_answer) as url:
        journal = open_journal(url)
        with pytest.raises(Fenced, match="attempt 2 has written"):
            await journal.append(1, 0, [entry(0)])

    assert await numbers(server.url) == [0, 1]


@pytest.mark.slow
async def test_a_server_killed_again_and_again_loses_nothing_that_it_acknowledged(server: RedisServer) -> None:
    journal = open_journal(server.url)
    acknowledged = 0

    async def append_until(target: int) -> None:
        nonlocal acknowledged
        while acknowledged < target:
            try:
                await journal.append(1, acknowledged, [entry(acknowledged)])
                acknowledged += 1
            except JournalUnavailable:
                await asyncio.sleep(0.01)

    for target in (50, 120, 200, 290):
        await append_until(target)
        writing = asyncio.create_task(append_until(400))
        await asyncio.sleep(0.01)
        server.kill()  # in the middle of whatever it is doing
        await asyncio.to_thread(server.start)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    await append_until(400)

    assert await numbers(server.url) == list(range(400))


async def test_a_server_that_is_gone_or_starts_anew_between_appends_is_noticed(server: RedisServer) -> None:
    journal = open_journal(server.url)
    await journal.append(1, 0, [entry(0)])
    server.kill()
    with pytest.raises(JournalUnavailable, match="cannot be reached"):
        await journal.append(1, 1, [entry(1)])
    server.start()
    await journal.append(1, 1, [entry(1)])

    assert await numbers(server.url) == [0, 1]


async def test_the_log_says_once_why_a_journal_is_unavailable(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    journal = open_journal(server.url)
    for _ in range(2):
        server.kill()
        for _ in range(3):
            with pytest.raises(JournalUnavailable):
                await journal.append(1, 0, [])
        server.start()
        await journal.append(1, 0, [])

    assert [record.getMessage() for record in caplog.records] == 2 * [
        f"the journal is unavailable: Redis at {server.path} cannot be reached: Connection refused"
    ]


async def test_a_server_that_hangs_is_unavailable_after_a_while(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(server.url)
    await journal.append(1, 0, [entry(0)])
    server.freeze()
    with monkeypatch.context() as impatience:
        impatience.setattr(redis_client, "REPLY_SECONDS", 0.1)
        with pytest.raises(JournalUnavailable, match=r"did not answer within 0\.1 s"):
            await journal.append(1, 1, [entry(1)])
    server.thaw()
    await journal.append(1, 1, [entry(1)])
    await journal.append(1, 2, [entry(2)])

    assert await numbers(server.url) == [0, 1, 2]


async def test_a_port_that_swallows_everything_is_unavailable_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "REPLY_SECONDS", 0.05)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as nobody:
        port = nobody.sockets[0].getsockname()[1]
        with pytest.raises(JournalUnavailable, match="did not answer"):
            await open_journal(f"redis://127.0.0.1:{port}").read()


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$-7\r\n", b"+OK\r\n+OK\r\n+OK\r\n", b"*"])
async def test_what_is_no_redis_is_unavailable(garbage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "REPLY_SECONDS", 0.2)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(garbage)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(JournalUnavailable):
            await open_journal(f"redis://127.0.0.1:{port}").append(1, 0, [entry(0)])


async def test_a_cancelled_append_leaves_the_connection_usable_and_is_found_done(server: RedisServer) -> None:
    journal = open_journal(server.url)
    await journal.append(1, 0, [entry(0)])
    for number in range(1, 20):
        task = asyncio.create_task(journal.append(1, number, [entry(number)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await journal.append(1, number, [entry(number)])

    assert await numbers(server.url) == list(range(20))


async def test_two_attempts_alive_cannot_both_advance(server: RedisServer) -> None:
    older, newer = open_journal(server.url), open_journal(server.url)
    await older.append(1, 0, [entry(0)])
    outcomes = await asyncio.gather(
        *(journal.append(attempt, 1, [entry(attempt)]) for attempt, journal in ((1, older), (2, newer))),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 1
    await newer.append(3, 2, [entry(3)])
    with pytest.raises(Fenced, match="attempt 3 has written"):
        await older.append(1, 3, [entry(4)])


async def test_a_full_memory_is_unavailable_and_heals(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "3mb").start()
    journal, seq = open_journal(server.url), 0
    try:
        with pytest.raises(JournalUnavailable, match=r"its memory is full \(maxmemory\)"):
            while True:
                await journal.append(1, seq, [{"number": seq, "pad": "x" * 100_000}])
                seq += 1
        assert await numbers(server.url) == list(range(seq))
        server.ask("CONFIG", "SET", "maxmemory", "100mb")
        await journal.append(1, seq, [entry(seq)])
        assert await numbers(server.url) == list(range(seq + 1))
    finally:
        server.close()


async def test_a_replica_and_a_disk_that_fails_are_unavailable(server: RedisServer) -> None:
    journal = open_journal(server.url)
    await journal.append(1, 0, [entry(0)])
    server.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(JournalUnavailable, match="it is a replica that takes no writes"):
        await journal.append(1, 1, [entry(1)])
    server.ask("REPLICAOF", "NO", "ONE")
    await journal.append(1, 1, [entry(1)])


RIGHTS = (
    "resetchannels",
    "-@all",
    "+evalsha",
    "+eval",
    "+xadd",
    "+xrange",
    "+xrevrange",
    "+ttl",
    "+expire",
    "+hmget",
    "+hset",
)


@pytest.fixture
def login(tmp_path: Path) -> RedisLogin:
    (tmp_path / "username").write_text("team-a\n")
    (tmp_path / "password").write_text("s3cret-of-team-a\n")
    return RedisLogin(tmp_path)


async def test_a_user_of_a_namespace_reaches_its_keys_and_no_others(server: RedisServer, login: RedisLogin) -> None:
    server.ask("ACL", "SETUSER", "team-a", "on", ">s3cret-of-team-a", "~ns:team-a:*", *RIGHTS)
    server.ask("ACL", "SETUSER", "default", "off")
    await open_journal(server.url, login).append(1, 0, [entry(0)])

    theirs = RedisJournal(RedisClient(parse_address(server.url), login), redis_run_prefix("team-b", "u-1"))
    with pytest.raises(JournalUnavailable, match="its user may not do this"):
        await theirs.read()
    with pytest.raises(JournalUnavailable, match="its user may not do this"):
        await theirs.append(1, 0, [entry(0)])
    client = RedisClient(parse_address(server.url), login)
    for command in (("KEYS", "*"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("SCRIPT", "FLUSH"), ("ACL", "LIST")):
        with pytest.raises(redis_client.RedisRefused, match="NOPERM"):
            await client.call(*command)


async def test_a_password_that_is_refused_or_missing_is_said_and_never_shown(
    server: RedisServer, login: RedisLogin, tmp_path: Path
) -> None:
    server.ask("ACL", "SETUSER", "team-a", "on", ">another", "~*", "+@all")
    server.ask("ACL", "SETUSER", "default", "off")
    with pytest.raises(JournalUnavailable, match="refused the login of the user team-a: WRONGPASS") as refused:
        await open_journal(server.url, login).read()
    assert "s3cret" not in str(refused.value)
    with pytest.raises(JournalUnavailable, match="it wants a user and a password, and the Secret has none"):
        await open_journal(server.url).read()

    # Kubernetes swaps the files of a Secret; they are read anew at each connect.
    journal = open_journal(server.url, login)
    (tmp_path / "password").write_text("another")
    await journal.append(1, 0, [entry(0)])


async def test_a_restart_under_the_users_of_the_chart_keeps_what_scripts_have_written(
    tmp_path: Path, login: RedisLogin
) -> None:
    """Redis reads its log again as the user `default`; what that may not do it leaves out, and starts all the same."""
    secrets = [found["stringData"] for found in yaml.safe_load_all(GOLDEN_CHART.read_text()) if "stringData" in found]
    default = next(text for secret in secrets for text in secret.get("users.acl", "").splitlines() if "default" in text)
    users = tmp_path / "users.acl"
    users.write_text(f"{default}\nuser team-a on >s3cret-of-team-a ~ns:team-a:* {' '.join(RIGHTS)}\n")
    data = tmp_path / "data"
    data.mkdir()
    server = RedisServer(data, "--aclfile", str(users)).start()
    try:
        assert "NOAUTH" in str(server.ask("GET", "a")), "nobody is default"
        await open_journal(server.url, login).append(1, 0, [entry(0), entry(1)])
        server.kill()
        server.start()
        assert await read_once_loaded(open_journal(server.url, login)) == [entry(0), entry(1)]
    finally:
        server.close()


async def read_once_loaded(journal: RedisJournal) -> list[RawEntry]:
    """Read when the server has read its log: it says so to nobody who is not logged in."""
    async with asyncio.timeout(60):
        while True:
            try:
                return list(await journal.read())
            except JournalUnavailable:
                await asyncio.sleep(0.02)


async def test_a_password_is_not_quoted_by_a_server_that_does_not_know_logins(login: RedisLogin) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(b"-ERR unknown command with args beginning with: " + data.replace(b"\r\n", b" ") + b"\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(JournalUnavailable, match="refused the login of the user team-a: ERR") as refused:
            await open_journal(f"redis://127.0.0.1:{port}", login).read()
    assert "s3cret" not in str(refused.value)


async def test_damage_is_corrupt(server: RedisServer) -> None:
    journal = open_journal(server.url)
    await journal.append(1, 0, [entry(0)])
    line = encode_batch(Batch(1, 1, (entry(1),)))
    server.ask("XADD", KEY, "2-1", "batch", line.replace(b"noted", b"nated"), "writer", "w")
    with pytest.raises(JournalCorrupt, match="the batch 2-1 is damaged, entry 1 was expected"):
        await journal.read()

    server.ask("XDEL", KEY, "2-1")
    server.ask("XADD", KEY, "9-1", "batch", encode_batch(Batch(1, 8, (entry(8),))), "writer", "w")
    with pytest.raises(JournalCorrupt, match="the batch 9-1 begins with entry 8, entry 1 was expected"):
        await journal.read()

    server.ask("DEL", KEY)
    server.ask("SET", KEY, "x")
    with pytest.raises(JournalCorrupt, match="holds something else than a journal"):
        await journal.append(1, 0, [entry(0)])
    with pytest.raises(JournalCorrupt, match="holds something else than a journal"):
        await journal.read()


async def test_a_large_journal_is_read_in_pages(server: RedisServer) -> None:
    journal = open_journal(server.url)
    for seq in range(0, 10_000, 10):
        await journal.append(1, seq, [entry(seq + part) for part in range(10)])
    server.ask("CONFIG", "RESETSTAT")

    assert [e["number"] for e in await journal.read()] == list(range(10_000))
    assert b"cmdstat_xrange:calls=6," in server.ask("INFO", "commandstats")


async def test_a_journal_stays_long_after_its_last_append_and_the_expiry_is_seldom_and_never_alone_written(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> int:
        seconds: int = server.ask("TTL", KEY)
        return seconds

    journal = RedisJournal(RedisClient(parse_address(server.url)), PREFIX, keep_seconds=10_000)
    await journal.append(1, 0, [])
    await journal.append(1, 0, [entry(0)])
    assert 9_990 < left() <= 10_000
    server.ask("EXPIRE", KEY, 50)
    await journal.append(1, 1, [entry(1)])
    assert left() <= 50
    monkeypatch.setattr(redis_journal, "monotonic", lambda: time.monotonic() + 3600)
    await journal.append(1, 2, [entry(2)])
    assert 9_990 < left() <= 10_000

    server.ask("EXPIRE", KEY, 50)  # the run was over, and is not: another attempt adds
    newer = open_journal(server.url)
    await newer.append(2, 3, [entry(3)])
    assert left() > 50


@pytest.mark.parametrize("rights", [(), ("resetpass", "~*", "&*", "+@all")])
async def test_nothing_is_lost_at_a_restart_where_nobody_can_be_the_default_user(
    tmp_path: Path, login: RedisLogin, rights: tuple[str, ...]
) -> None:
    """Redis 7.0 replays transactions with the rights of that user."""
    (tmp_path / "data").mkdir()
    acl = tmp_path / "users.acl"
    users = ("default off " + " ".join(rights), "team-a on >s3cret-of-team-a ~ns:team-a:* " + " ".join(RIGHTS))
    acl.write_text("".join(f"user {user.strip()}\n" for user in users))
    server = RedisServer(tmp_path / "data", "--aclfile", str(acl)).start()
    try:
        journal = open_journal(server.url, login)
        for number in range(5):
            await journal.append(1, number, [entry(number)])
        sessions, key = RedisSessions(RedisClient(parse_address(server.url), login), keep_seconds=1000), TALK
        assert await sessions.replace(key, 0, b"hello")
        server.kill()
        server.start()
        assert await numbers_once_loaded(open_journal(server.url, login)) == [0, 1, 2, 3, 4]
        await journal.append(1, 5, [entry(5)])
        assert await sessions.load(key) == StoredSession(1, b"hello")
    finally:
        server.close()


async def numbers_once_loaded(journal: RedisJournal) -> list[int]:
    """Return what a server holds that reads its data from disk, and may be asked by nobody whether it is done."""
    async with asyncio.timeout(60):
        while True:
            try:
                return [e["number"] for e in await journal.read()]
            except JournalUnavailable:
                await asyncio.sleep(0.01)


TALK = SessionKey("team-a", "customer-c-17", "investigate")


async def test_bytes_written_per_append_do_not_grow_with_the_journal(server: RedisServer, tmp_path: Path) -> None:
    sizes = []
    journal = open_journal(server.url)
    for seq in range(100, 300):
        await journal.append(1, seq - 100, [entry(seq)])
        sizes.append(sum(file.stat().st_size for file in (tmp_path / "appendonlydir").iterdir()))

    steps = [after - before for before, after in pairwise(sizes[1:])]
    assert max(steps) - min(steps) <= 8  # the digits of numbers
    assert max(steps) < 350


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("redis://redis.pilothouse-system.svc", RedisAddress("redis.pilothouse-system.svc")),
        ("redis://10.0.0.7:7000/3", RedisAddress("10.0.0.7", 7000, database=3)),
        ("rediss://[::1]:6380", RedisAddress("::1", 6380, is_tls=True)),
        ("unix:///run/redis/s", RedisAddress(path="/run/redis/s")),
    ],
)
def test_an_address_is_host_port_and_database(url: str, want: RedisAddress) -> None:
    assert parse_address(url) == want


@pytest.mark.parametrize(
    "url",
    ["", "redis", "http://redis:6379", "redis://", "redis://u:geheim@redis:6379", "redis://redis/x", "redis://r/0?a=b"],
)
def test_what_is_no_address_or_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|query") as refused:
        parse_address(url)
    assert "geheim" not in str(refused.value)
