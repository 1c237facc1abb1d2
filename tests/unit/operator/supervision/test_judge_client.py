"""Whatever the judge's service does, the operator has an answer in time."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pilothouse_api.judging import MAX_FAILURE_CHARS, JudgeFailure, Verdict
from pilothouse_operator.supervision import judge_client
from pilothouse_operator.supervision.judge_client import HttpJudge, open_judge
from support.observations import judge_request

pytestmark = pytest.mark.anyio

Reply = Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]
VERDICT = b'{"passed": true, "reason": "", "tokens": 7}'


def http(body: bytes, status: str = "200 OK", headers: bytes = b"", length: int | None = None) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body) if length is None else length}\r\n".encode()
    return head + headers + b"\r\n" + body


@asynccontextmanager
async def served(reply: bytes | None, seen: list[bytes] | None = None) -> AsyncIterator[str]:
    """A service that answers each request with these bytes and then closes; with None it hangs."""
    open_writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        if reply is None:
            return
        try:
            writer.write(reply)
            await writer.drain()
        except ConnectionError:
            return  # the client has seen enough
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in open_writers:
            writer.close()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "RETRY_PAUSES", (0.01, 0.01))


@pytest.fixture
async def client_of(tmp_path: Path) -> AsyncIterator[Callable[[str], HttpJudge]]:
    (tmp_path / "token").write_text("judge-token\n")
    made: list[HttpJudge] = []

    def make(url: str) -> HttpJudge:
        made.append(HttpJudge(url, tmp_path / "token"))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.mark.parametrize(
    ("reply", "want", "words"),
    [
        (http(b""), "BadAnswer", "0 bytes that are no JSON object"),
        (http(b"<html>hello</html>"), "BadAnswer", "18 bytes that are no JSON object"),
        (http(b"[" * 100_000), "BadAnswer", "no JSON object"),
        (http(b"\xff\xfe"), "BadAnswer", "no JSON object"),
        (http(b"[true]"), "BadAnswer", "no JSON object"),
        (http(b'{"passed": "yes", "reason": ""}'), "BadAnswer", "neither verdict nor failure"),
        (http(b'{"passed": 1, "reason": ""}'), "BadAnswer", "neither verdict nor failure"),
        (http(b'{"passed": true}'), "BadAnswer", "neither verdict nor failure"),
        (http(b'{"passed": true, "reason": "' + b"x" * 301 + b'"}'), "BadAnswer", "neither verdict nor failure"),
        (http(b'{"passed": true, "reason": "", "tokens": -1}'), "BadAnswer", "neither verdict nor failure"),
        (http(b'{"type": "Invented", "message": ""}'), "BadAnswer", "neither verdict nor failure"),
        (http(b"x" * 50_000_000), "BadAnswer", "more than 262,144 bytes"),
        (http(gzip.compress(VERDICT), headers=b"content-encoding: gzip\r\n"), "BadAnswer", "no JSON object"),
        (http(VERDICT, length=1000), "Unavailable", "gave no answer: ClientPayloadError"),
        (http(VERDICT)[:40], "Unavailable", "gave no answer: "),
        (b"", "Unavailable", "gave no answer: ServerDisconnectedError"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "Unavailable", "gave no answer: ClientResponseError"),
        (http(VERDICT, "500 Oh"), "Unavailable", "answered with status 500"),
        (http(b'{"type": 3}', "503 Full"), "Unavailable", "answered with status 503"),
        (http(b"", "302 Found", b"location: http://127.0.0.1:1/\r\n"), "Unavailable", "answered with status 302"),
    ],
    ids=range(20),
)
async def test_an_answer_in_any_other_form_is_a_failure(
    client_of: Callable[[str], HttpJudge], reply: bytes, want: str, words: str
) -> None:
    async with served(reply) as url:
        answer = await asyncio.wait_for(client_of(url).ask(judge_request()), 60)

    assert isinstance(answer, JudgeFailure)
    assert answer.type == want and words in answer.message
    assert len(answer.message) <= MAX_FAILURE_CHARS and answer.message.isprintable()


@pytest.mark.parametrize(
    ("status", "kind", "asked"), [("503 Full", "Unavailable", 3), ("401 Who", "Refused", 1), ("200 OK", "Timeout", 1)]
)
async def test_a_failure_that_the_service_states_is_handed_on(
    client_of: Callable[[str], HttpJudge], status: str, kind: Any, asked: int
) -> None:
    seen: list[bytes] = []
    stated = JudgeFailure(type=kind, message="so it is")
    async with served(http(stated.model_dump_json().encode(), status), seen) as url:
        answer = await client_of(url).ask(judge_request())

    assert (answer.type, answer.message) == (kind, "so it is")  # type: ignore[union-attr]
    assert len(seen) == asked, "what is full now may have room soon, all else is as it is"


@pytest.mark.parametrize("first", [b"", http(VERDICT, length=1000), None], ids=["gone", "gone midway", "reset"])
async def test_a_judge_that_is_replaced_while_it_answers_stops_no_run(
    client_of: Callable[[str], HttpJudge], first: bytes | None
) -> None:
    """What the first one may have taken is counted: nobody can say that it was not charged for."""
    asked = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"POST" in head
        if asked == 1 and first is None:
            writer.transport.abort()
            return
        writer.write(http(VERDICT) if asked > 1 else first or b"")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        answer = await client_of(url).ask(judge_request())

    assert isinstance(answer, Verdict) and answer.passed
    assert asked == 2
    assert answer.tokens > 100


async def test_a_question_is_not_put_again_when_its_time_is_up(
    client_of: Callable[[str], HttpJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "RETRY_PAUSES", (1.0, 1.0))
    seen: list[bytes] = []
    async with served(b"", seen) as url:
        answer = await client_of(url).ask(judge_request(timeout_seconds=1))

    assert isinstance(answer, JudgeFailure) and answer.type == "Unavailable"
    assert len(seen) == 1


async def test_a_verdict_is_a_verdict_and_the_request_names_the_judges_own_token(
    client_of: Callable[[str], HttpJudge],
) -> None:
    seen: list[bytes] = []
    async with served(http(VERDICT), seen) as url:
        answer = await client_of(url).ask(judge_request())

    assert answer == Verdict(passed=True, reason="", tokens=7)
    assert seen[0].startswith(b"POST /v1/verdicts HTTP/1.1\r\n") and b"Bearer judge-token\r\n" in seen[0]


async def test_a_service_that_hangs_is_left_soon_after_the_requests_time(
    client_of: Callable[[str], HttpJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "MARGIN_SECONDS", 0.2)
    async with served(None) as url:
        answer = await asyncio.wait_for(client_of(url).ask(judge_request(timeout_seconds=1)), 60)

    assert isinstance(answer, JudgeFailure)
    assert answer.type == "Timeout" and answer.message.endswith("gave no answer within 1.2 s")
    assert answer.tokens > 0, "it may have been charged for"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no.such.host.invalid", "http://[", "nonsense"])
async def test_a_service_that_cannot_be_reached_is_unavailable_and_costs_nothing(
    client_of: Callable[[str], HttpJudge], url: str
) -> None:
    client = client_of(url)
    answers = [await asyncio.wait_for(client.ask(judge_request()), 40), await asyncio.wait_for(client.models(), 40)]

    assert all(isinstance(answer, JudgeFailure) and answer.type == "Unavailable" for answer in answers)
    assert [answer.tokens for answer in answers if isinstance(answer, JudgeFailure)] == [0, 0]


@pytest.mark.parametrize("token", [None, b"\xff\xfe", b"a\r\nx-injected: b"])
async def test_a_token_that_cannot_be_used_is_a_failure(tmp_path: Path, token: bytes | None) -> None:
    if token is not None:
        (tmp_path / "token").write_bytes(token)
    client = HttpJudge("http://127.0.0.1:1", tmp_path / "token")
    try:
        answer = await client.ask(judge_request())
    finally:
        await client.close()

    assert isinstance(answer, JudgeFailure)
    assert (answer.type, answer.tokens) == ("Unavailable", 0)
    assert answer.message.startswith("the judge's token ")


@pytest.mark.parametrize("body", [b"{}", b'{"models": "careful"}', b'{"models": [1]}', b"[]"])
async def test_a_table_that_is_none_is_a_failure(client_of: Callable[[str], HttpJudge], body: bytes) -> None:
    async with served(http(body)) as url:
        found = await client_of(url).models()

    assert isinstance(found, JudgeFailure) and found.type == "BadAnswer"


def test_an_installation_without_an_address_has_no_judge(tmp_path: Path) -> None:
    assert open_judge("", tmp_path) is None
    assert open_judge("http://judge", tmp_path) is not None
