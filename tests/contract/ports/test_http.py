"""The Http port, tried with a real server on loopback that sends whatever bytes a test wants."""

import asyncio
import gzip
import ipaddress
import ssl
import subprocess
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pilothouse_engine.ports import Http, HttpFailure, HttpRequest, HttpResponse
from pilothouse_runner.adapters import http as http_module
from pilothouse_runner.adapters.addresses import is_refused, parse_networks
from pilothouse_runner.adapters.http import HttpxHttp
from pilothouse_runner.telemetry import TRACEPARENT

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

pytestmark = pytest.mark.anyio


class Server:
    """What the server heard, and where it is."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self.closed = asyncio.Event()
        self.port = 0

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def serve(handle: Handler, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            server.heads.append(head)
            await handle(head, reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            server.closed.set()
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=ssl_context)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def answer(raw: bytes) -> Handler:
    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return handle


def with_body(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
def http() -> Http:
    return HttpxHttp()


async def get(http: Http, url: str, **fields) -> HttpResponse | HttpFailure:
    return await http.send(HttpRequest("GET", url, **{"timeout": 5.0, **fields}))


# ---------------------------------------------------------------- what is sent and what comes back


async def test_the_request_arrives_as_it_was_asked_for(http: Http) -> None:
    bodies = []

    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await reader.readexactly(5))
        writer.write(with_body(b'{"a": 1}', "201 Created", "Content-Type: application/json", "X-A: 1", "X-A: 2"))

    async with serve(handle) as server:
        headers = (("X-Key", "grüße"), ("Content-Type", "text/plain"), ("Idempotency-Key", "k1"))
        got = await http.send(HttpRequest("POST", server.url("/a%2Fb/?q=%20x&r=1"), headers, b"hello", 5.0))

    assert isinstance(got, HttpResponse)
    assert (got.status, got.body) == (201, b'{"a": 1}')
    assert [value for name, value in got.headers if name.lower() == "x-a"] == ["1", "2"]
    head = server.heads[0]
    assert head.startswith(b"POST /a%2Fb/?q=%20x&r=1 HTTP/1.1\r\n")
    want_lines = ["Host: 127.0.0.1:", "X-Key: grüße\r\n", "Content-Type: text/plain\r\n", "Idempotency-Key: k1\r\n"]
    for line in (*want_lines, "Content-Length: 5\r\n", "User-Agent: pilothouse/"):
        assert head.lower().count(line.lower().encode()) == 1, line
    assert bodies == [b"hello"]


async def test_a_request_says_which_span_it_belongs_to_unless_its_author_says_it(http: Http) -> None:
    async with serve(answer(with_body(b""))) as server:
        await http.send(HttpRequest("GET", server.url()))
        token = TRACEPARENT.set("00-abc-def-01")
        await http.send(HttpRequest("GET", server.url()))
        await http.send(HttpRequest("GET", server.url(), (("Traceparent", "mine"),)))
        TRACEPARENT.reset(token)
    said = [head.decode().lower().split("traceparent: ")[1:] for head in server.heads]
    assert [len(found) for found in said] == [0, 1, 1]
    assert [found[0].split("\r\n")[0] for found in said[1:]] == ["00-abc-def-01", "mine"]


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified", "404 Not Found", "500 Oops", "302 Found"])
async def test_every_status_is_an_answer(http: Http, status: str) -> None:
    async with serve(answer(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())) as server:
        got = await get(http, server.url())

    assert isinstance(got, HttpResponse)
    assert got.status == int(status[:3])


async def test_the_environments_proxies_and_credentials_are_not_used(http: Http, monkeypatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login u password p\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serve(answer(with_body(b"ok"))) as server:
        got = await get(http, server.url())

    assert isinstance(got, HttpResponse)
    assert b"uthorization" not in server.heads[0]


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_is_bounded_while_it_is_read(http: Http, declared: bool) -> None:
    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = b"Content-Length: 999999999999\r\n" if declared else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n")
        for _ in range(100_000):
            writer.write(b"x" * 65536)
            await writer.drain()

    async with serve(handle) as server:
        got = await get(http, server.url(), max_bytes=100_000)
        await asyncio.wait_for(server.closed.wait(), 30)

    assert got == HttpFailure("TooLarge", "the answer is larger than 100,000 bytes", sent=True)


async def test_a_body_of_exactly_the_limit_passes(http: Http) -> None:
    async with serve(answer(with_body(b"x" * 1000))) as server:
        assert isinstance(await get(http, server.url(), max_bytes=1000), HttpResponse)
        assert isinstance(await get(http, server.url(), max_bytes=999), HttpFailure)


async def test_compressed_answers_are_decoded_within_the_limit(http: Http) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    cases = {
        "/gzip": (gzip.compress(b"hello"), "gzip", b"hello"),
        "/deflate": (zlib.compress(b"hello"), "deflate", b"hello"),
        "/bomb": (bomb, "gzip", "TooLarge"),
        "/br": (b"hello", "br", "Invalid"),
        "/liar": (b"hello", "gzip", "Invalid"),
    }

    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body, encoding, _ = cases[head.split()[1].decode()]
        writer.write(with_body(body, "200 OK", f"Content-Encoding: {encoding}"))

    async with serve(handle) as server:
        for path, (_, _, want) in cases.items():
            got = await get(http, server.url(path), max_bytes=100_000)
            assert (got.body if isinstance(got, HttpResponse) else got.kind) == want, path


# ---------------------------------------------------------------- failures, and whether bytes were sent


async def test_a_slow_server_is_a_timeout_after_which_the_connection_is_closed(http: Http) -> None:
    async def drip(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not reader.at_eof():  # a byte now and then: each wait is short, the whole is not
            writer.write(b"x")
            await writer.drain()
            try:
                await asyncio.wait_for(reader.read(1), 0.05)
            except TimeoutError:
                pass

    started = time.monotonic()
    async with serve(drip) as server:
        got = await get(http, server.url(), timeout=1.0)
        await asyncio.wait_for(server.closed.wait(), 30)

    assert got == HttpFailure("Timeout", "no complete answer within 1 s", sent=True)
    assert time.monotonic() - started < 60


async def test_a_cancelled_request_closes_its_connection(http: Http) -> None:
    arrived = asyncio.Event()

    async def silent(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()

    async with serve(silent) as server:
        task = asyncio.create_task(get(http, server.url()))
        await asyncio.wait_for(arrived.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.closed.wait(), 30)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x01\x02\x03" * 100,
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
)
async def test_an_answer_that_is_cut_or_garbage_is_a_failure_after_bytes_were_sent(http: Http, raw: bytes) -> None:
    async with serve(answer(raw)) as server:
        got = await http.send(HttpRequest("POST", server.url(), body=b"{}", timeout=30.0))

    assert isinstance(got, HttpFailure)
    assert (got.kind, got.sent) == ("Connection", True)
    assert "127.0.0.1" in got.message and len(got.message) < 400


async def test_a_port_where_nobody_listens_is_a_failure_before_anything_was_sent(http: Http) -> None:
    async with serve(answer(b"")) as server:
        url = server.url()

    got = await get(http, url)

    assert isinstance(got, HttpFailure)
    assert (got.kind, got.sent) == ("Connection", False)


async def test_a_server_that_accepts_and_says_no_tls_is_a_failure_before_anything_was_sent(http: Http) -> None:
    async with serve(answer(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        got = await get(http, server.url(scheme="https"), timeout=1.0)

    assert isinstance(got, HttpFailure)
    assert got.sent is False
    assert server.heads == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "127.0.0.1/x",
        "http://",
        "http:///x",
        "http://u:p@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "http://a\x00b/",
        "http://127.0.0.1/\r\nX: 1",
        "gopher://x/",
        "http://" + "a." * 200 + "example/",
        "",
    ],
)
async def test_an_address_that_cannot_be_used_is_refused_unsent(http: Http, url: str) -> None:
    got = await get(http, url)

    assert isinstance(got, HttpFailure)
    assert got.sent is False and got.kind in ("Invalid", "Connection")


@pytest.mark.parametrize(
    "headers", [(("X-A", "a\r\nX-B: 1"),), (("X A", "1"),), (("", "1"),), (("Ü", "1"),), (("X", "\ud800"),)]
)
async def test_a_header_that_would_break_the_request_is_refused_unsent(http: Http, headers) -> None:
    async with serve(answer(with_body(b"ok"))) as server:
        got = await get(http, server.url(), headers=headers)

    assert isinstance(got, HttpFailure)
    assert got.kind == "Invalid"
    assert server.heads == []


async def test_a_name_that_does_not_resolve_is_a_failure_unsent(http: Http) -> None:
    got = await get(http, "http://no-such-host.invalid/")

    assert isinstance(got, HttpFailure)
    assert (got.kind, got.sent) == ("Connection", False)
    assert "no-such-host.invalid" in got.message


# ---------------------------------------------------------------- redirects


def redirecting(steps: dict[str, str], status: str = "302 Found") -> Handler:
    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = head.split()[1].decode()
        location = steps.get(path)
        writer.write(with_body(b"", status, f"Location: {location}") if location else with_body(path.encode()))

    return handle


async def test_redirects_of_the_same_server_are_followed_with_the_headers(http: Http) -> None:
    async with serve(redirecting({"/a": "/b?x=1", "/b?x=1": "c"})) as server:
        got = await get(http, server.url("/a"), headers=(("Authorization", "secret"),))

    assert isinstance(got, HttpResponse)
    assert (got.status, got.body) == (200, b"/c")
    assert [b"Authorization: secret" in head for head in server.heads] == [True, True, True]


async def test_a_redirect_to_another_server_is_the_answer(http: Http) -> None:
    async with serve(answer(with_body(b"caught"))) as other:
        for target in (
            other.url(),
            other.url(host="localhost"),
            "http://169.254.169.254/",
            "file:///etc/passwd",
            "http://[",
        ):
            async with serve(redirecting({"/a": target})) as server:
                got = await get(http, server.url("/a"), headers=(("Authorization", "secret"),))
            assert isinstance(got, HttpResponse)
            assert got.status == 302
    assert other.heads == []


async def test_a_circle_of_redirects_ends(http: Http) -> None:
    async with serve(redirecting({"/a": "/a"})) as server:
        got = await get(http, server.url("/a"))

    assert isinstance(got, HttpResponse)
    assert (got.status, len(server.heads)) == (302, 6)


async def test_only_get_and_head_are_sent_on(http: Http) -> None:
    async with serve(redirecting({"/a": "/b"}, "307 Temporary Redirect")) as server:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            got = await http.send(HttpRequest(method, server.url("/a"), timeout=30.0))
            assert isinstance(got, HttpResponse)
            assert got.status == 307
        assert isinstance(await http.send(HttpRequest("HEAD", server.url("/a"), timeout=30.0)), HttpResponse)

    assert [head.split()[0] for head in server.heads] == [b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"HEAD"]


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "0.0.0.0",
        "[::]",
        "100.100.100.200",
        "168.63.129.16",
        "2852039166",
        "0xa9fea9fe",
        "224.0.0.1",
        "255.255.255.255",
    ],
)
async def test_link_local_and_metadata_addresses_are_refused(http: Http, host: str) -> None:
    got = await get(http, f"http://{host}/latest/meta-data/")

    assert isinstance(got, HttpFailure)
    assert (got.kind, got.sent) == ("Blocked", False)


def test_the_platform_may_allow_a_network() -> None:
    allowed = parse_networks(["169.254.20.0/24", "fe80::/10"])

    assert not is_refused(ipaddress.ip_address("169.254.20.10"), allowed)
    assert not is_refused(ipaddress.ip_address("::ffff:169.254.20.10"), allowed)
    assert is_refused(ipaddress.ip_address("169.254.169.254"), allowed)
    assert not is_refused(ipaddress.ip_address("127.0.0.1"))
    assert not is_refused(ipaddress.ip_address("10.0.0.1"))


async def test_a_name_is_refused_when_any_of_its_addresses_is(http: Http, monkeypatch) -> None:
    async def resolve(host: str, port: int) -> list:
        return [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("169.254.169.254")]

    monkeypatch.setattr(http_module, "resolve", resolve)
    async with serve(answer(with_body(b"ok"))) as server:
        got = await get(http, server.url(host="crm.example"))

    assert isinstance(got, HttpFailure)
    assert (got.kind, server.connections) == ("Blocked", 0)


async def test_a_name_that_changes_its_address_after_the_check_changes_nothing(http: Http, monkeypatch) -> None:
    answers = [[ipaddress.ip_address("127.0.0.1")], [ipaddress.ip_address("169.254.169.254")]]

    async def resolve(host: str, port: int) -> list:
        return answers.pop(0)

    monkeypatch.setattr(http_module, "resolve", resolve)
    async with serve(answer(with_body(b"ok"))) as server:
        got = await get(http, server.url(host="crm.example"))
        want_host = f"Host: crm.example:{server.port}\r\n".encode()

    assert isinstance(got, HttpResponse)  # one look-up, and its answer was connected to by number
    assert want_host in server.heads[0]
    assert len(answers) == 1


async def test_the_next_address_is_tried_where_the_first_cannot_be_reached(http: Http, monkeypatch) -> None:
    async def resolve(host: str, port: int) -> list:
        return [ipaddress.ip_address("127.0.0.2"), ipaddress.ip_address("127.0.0.1")]

    monkeypatch.setattr(http_module, "resolve", resolve)
    async with serve(answer(with_body(b"ok"))) as server:
        got = await get(http, server.url(host="crm.example"))

    assert isinstance(got, HttpResponse)


async def test_a_certificate_is_checked_against_the_name_and_not_the_number(monkeypatch, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=crm.example"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:crm.example", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(certificate, key)
    http = HttpxHttp(ssl_context=ssl.create_default_context(cafile=str(certificate)))

    async def resolve(host: str, port: int) -> list:
        return [ipaddress.ip_address("127.0.0.1")]

    monkeypatch.setattr(http_module, "resolve", resolve)
    async with serve(answer(with_body(b"ok")), server_context) as server:
        good = await get(http, server.url(host="crm.example", scheme="https"))
        bad = await get(http, server.url(host="other.example", scheme="https"))

    assert isinstance(good, HttpResponse)
    assert isinstance(bad, HttpFailure)
    assert (bad.kind, bad.sent, len(server.heads)) == ("Connection", False, 1)
