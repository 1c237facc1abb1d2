"""StreamableHTTP: credentials, sessions, redirects, bounds, cancellation; against the SDK's server and broken ones."""

import asyncio
import gzip
import json
import ssl
import subprocess
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from pilothouse_api import __version__
from pilothouse_api.names import audience_token_file
from pilothouse_api.structs import McpServer
from pilothouse_engine.ports import McpFailure, McpListing, McpResult
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_runner.adapters.mcp import SdkMcp, session
from support.mcp_servers.clients import MakeClient, until
from support.mcp_servers.http_servers import sdk_http_server, serving
from support.mcp_servers.raw_http import Exchange, RawServer, hang, raw_http_server
from support.mcp_servers.sdk_server import tool

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECRET_HEADER = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "token"}}}
MIB = 1_048_576


def at(url: str, **more: Any) -> McpServer:
    return McpServer.read({"name": "things", "transport": "StreamableHTTP", "url": url, **more})


async def call(
    mcp: SdkMcp, server: McpServer, name: str = "echo", *, timeout: float = 60.0, max_bytes: int = MIB, **arguments: Any
) -> McpResult | McpFailure:
    return await mcp.call_tool(server, name, arguments, "key-1", timeout, max_bytes)


def failed(got: object, kind: str) -> McpFailure:
    assert isinstance(got, McpFailure), got
    assert got.kind == kind, got
    assert "secret-value" not in got.message + got.detail
    assert len(got.message) <= 500
    return got


# ---------------------------------------------------------------- the ordinary way


async def test_one_session_serves_a_visit_and_is_ended_at_the_server(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            listing = await mcp.list_tools(at(server.url), 60.0)
            assert isinstance(listing, McpListing)
            assert [one.name for one in listing.tools] == [one.name for one in server.state.tools]
            assert await call(mcp, at(server.url), text="a") == McpResult("a")
            assert await call(mcp, at(server.url), text="b") == McpResult("b")
        assert server.methods().count("initialize") == 1
        assert [asked.verb for asked in server.asked][-1] == "DELETE"


async def test_nothing_is_listened_to_that_nobody_asked_for(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            await call(mcp, at(server.url), text="a")
            assert "GET" not in [asked.verb for asked in server.asked]


async def test_the_idempotency_key_travels_in_meta_and_as_a_header_of_the_call_alone(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            assert await call(mcp, at(server.url), "meta") == McpResult("key-1")
            assert server.last("tools/call").headers["idempotency-key"] == "key-1"
            assert "idempotency-key" not in server.last("initialize").headers
            assert await mcp.call_tool(at(server.url), "meta", {}, None, 60.0, MIB) == McpResult("None")
            assert "idempotency-key" not in server.last("tools/call").headers


async def test_the_current_span_travels_in_meta(a_client: MakeClient) -> None:
    """The SDK does it, from the context that telemetry sets; without a span nothing is sent."""
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with sdk_http_server() as server:
        async with a_client() as mcp:
            await call(mcp, at(server.url), text="a")
            assert "traceparent" not in server.last("tools/call").message["params"].get("_meta", {})
            token = attach(set_span_in_context(span))
            await call(mcp, at(server.url), text="a")
            detach(token)
            version, trace, parent, _ = server.last("tools/call").message["params"]["_meta"]["traceparent"].split("-")
            assert (version, trace, int(parent, 16) != 0) == ("00", f"{0xABC:032x}", True)


async def test_calls_run_beside_each_other_in_one_session(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            texts = [str(n) for n in range(8)]
            got = await asyncio.gather(*(call(mcp, at(server.url), text=text) for text in texts))
            assert got == [McpResult(text) for text in texts]
            assert server.asked[0].headers["user-agent"] == f"pilothouse/{__version__}"
            assert server.methods().count("initialize") == 1


@pytest.mark.parametrize("options", [{"json_response": True}, {"stateless_http": True}])
async def test_servers_that_answer_with_json_or_keep_no_session_are_spoken_to(
    options: dict[str, Any], a_client: MakeClient
) -> None:
    with sdk_http_server(**options) as server:
        async with a_client() as mcp:
            assert isinstance(await mcp.list_tools(at(server.url), 60.0), McpListing)
            assert await call(mcp, at(server.url), text="a") == McpResult("a")


async def test_a_tool_that_appears_later_is_listed_when_it_is_asked_for_again(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            server.state.tools = [tool("one")]
            before = await mcp.list_tools(at(server.url), 60.0)
            server.state.tools.append(tool("two"))
            after = await mcp.list_tools(at(server.url), 60.0)
            assert isinstance(before, McpListing) and isinstance(after, McpListing)
            assert ([one.name for one in before.tools], [one.name for one in after.tools]) == (["one"], ["one", "two"])


async def test_a_server_of_the_newest_protocol_alone_is_spoken_to(a_client: MakeClient) -> None:
    async def no_handshake(exchange: Exchange) -> None:
        error = {"code": -32022, "message": "Unsupported", "data": {"supported": ["2026-07-28"], "requested": "x"}}
        await exchange.body({"jsonrpc": "2.0", "id": exchange.asked.message["id"], "error": error}, 400)

    with sdk_http_server() as modern, raw_http_server(initialize=no_handshake) as server:
        async with a_client() as mcp:
            # Everything but the handshake is the SDK's own server.
            async def forward(exchange: Exchange) -> None:
                import httpx

                kept = {
                    k: v for k, v in exchange.asked.headers.items() if k.startswith(("mcp-", "accept", "content-t"))
                }
                async with httpx.AsyncClient() as client:
                    got = await client.post(modern.url, json=exchange.asked.message, headers=kept)
                await exchange.raw(got.status_code, got.content, got.headers.get("content-type", "text/plain"))

            server.on["*"] = forward
            listing = await mcp.list_tools(at(server.url), 60.0)
            assert isinstance(listing, McpListing), listing
            assert await call(mcp, at(server.url), text="a") == McpResult("a")
            assert server.methods()[:2] == ["initialize", "server/discover"]


# ---------------------------------------------------------------- credentials


async def test_a_rotated_secret_is_used_from_the_next_request_on(a_client: MakeClient, secrets: DictSecrets) -> None:
    with sdk_http_server() as server:
        server.wanted = "Bearer second-secret-value"
        async with a_client() as mcp:
            guarded = at(server.url, headers=[SECRET_HEADER])
            refused = failed(await mcp.list_tools(guarded, 60.0), "Credentials")
            assert refused.message == "it answered HTTP 401: it does not take the credentials"

            secrets.values["gh/token"] = "Bearer second-secret-value"
            assert isinstance(await mcp.list_tools(guarded, 60.0), McpListing)

            server.wanted = "Bearer third-secret-value"
            refused = failed(await call(mcp, guarded, text="a"), "Credentials")
            assert not refused.sent
            secrets.values["gh/token"] = "Bearer third-secret-value"
            assert await call(mcp, guarded, text="a") == McpResult("a")


async def test_a_server_is_never_called_without_its_credentials(a_client: MakeClient, secrets: DictSecrets) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            guarded = at(server.url, headers=[SECRET_HEADER])
            assert await call(mcp, guarded, text="a") == McpResult("a")
            secrets.values.clear()
            seen = len(server.asked)
            got = failed(await call(mcp, guarded, text="b"), "Credentials")
            assert got == McpFailure("Credentials", "secret gh has no key token")
            assert len(server.asked) == seen
            failed(await mcp.list_tools(at(server.url + "?new", headers=[SECRET_HEADER]), 60.0), "Credentials")
            assert len(server.asked) == seen


async def test_a_projected_token_is_read_anew_for_each_request(a_client: MakeClient, tmp_path: Path) -> None:
    token = tmp_path / "tokens" / audience_token_file("mcp-gateway")
    token.parent.mkdir(parents=True)
    token.write_text("first-token-value\n")
    with sdk_http_server() as server:
        async with a_client() as mcp:
            guarded = at(server.url, auth={"serviceAccountToken": {"audience": "mcp-gateway"}})
            await call(mcp, guarded, text="a")
            assert server.last("tools/call").headers["authorization"] == "Bearer first-token-value"
            token.write_text("second-token-value")
            await call(mcp, guarded, text="a")
            assert server.last("tools/call").headers["authorization"] == "Bearer second-token-value"
            token.unlink()
            got = failed(await call(mcp, guarded, text="a"), "Credentials")
            assert got.message == "the token for mcp-gateway cannot be read: No such file or directory"


async def test_a_token_is_refused_where_there_are_none(a_client: MakeClient) -> None:
    async with a_client(tokens=None) as mcp:
        server = at("http://127.0.0.1:9/mcp", auth={"serviceAccountToken": {"audience": "gateway"}})
        assert "a local run has none" in failed(await mcp.list_tools(server, 5.0), "Credentials").message


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([{"name": "Mcp-Session-Id", "value": "x"}], "Mcp-Session-Id is set by the client"),
        ([{"name": "Host", "value": "x"}], "Host is set by the client"),
        ([{"name": "X-A", "value": "a\r\nX-B: b"}], "the value of the header X-A has a line break"),
        ([{"name": "X-A", "value": "{{ a }}"}], "X-A is a template"),
        ([{"name": "X-A", "value": " "}], "X-A is empty"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_refused(
    headers: list[dict[str, str]], why: str, a_client: MakeClient
) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            assert why in failed(await call(mcp, at(server.url, headers=headers)), "Credentials").message
        assert server.asked == []


async def test_credentials_that_come_back_are_masked_in_errors_and_results(a_client: MakeClient) -> None:
    async def tell_all(exchange: Exchange) -> None:
        told = exchange.asked.headers["authorization"]
        if exchange.asked.message["params"]["name"] == "error":
            error = {"code": -32000, "message": f"bad token {told}; use {told.split()[1]}"}
            await exchange.body({"jsonrpc": "2.0", "id": exchange.asked.message["id"], "error": error})
        else:
            await exchange.result(
                {"content": [{"type": "text", "text": told}], "structuredContent": {told: [told.split()[1], 1]}}
            )

    with raw_http_server(tools_call=tell_all) as server:
        async with a_client() as mcp:
            guarded = at(server.url, headers=[SECRET_HEADER])
            got = failed(await call(mcp, guarded, "error"), "JsonRpc")
            assert got.detail == "bad token [credential]; use [credential]"
            assert await call(mcp, guarded, "show") == McpResult("[credential]", {"[credential]": ["[credential]", 1]})


# ---------------------------------------------------------------- where it may lead


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "0.0.0.0", "[fd00:ec2::254]"]
)
async def test_link_local_and_metadata_addresses_are_refused(host: str, a_client: MakeClient) -> None:
    async with a_client() as mcp:
        got = failed(await call(mcp, at(f"http://{host}/mcp")), "Unavailable")
        assert "link-local, metadata or reserved" in got.message
        assert not got.sent


@pytest.mark.parametrize(
    "url", ["ftp://a.test/", "http:///mcp", "http://user:secret-value@a.test/", "http://{{ host }}/", "http://[::1/"]
)
async def test_an_address_that_cannot_be_used_is_refused(url: str, a_client: MakeClient) -> None:
    async with a_client() as mcp:
        assert "its address" in failed(await call(mcp, at(url)), "Unavailable").message


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_to_another_server_are_not_followed(status: int, a_client: MakeClient) -> None:
    with sdk_http_server() as other:

        async def redirect(exchange: Exchange) -> None:
            await exchange.raw(status, b"", "text/plain", location=other.url)

        with raw_http_server(any=redirect) as server:
            async with a_client() as mcp:
                got = failed(await call(mcp, at(server.url, headers=[SECRET_HEADER])), "Unavailable")
                assert got.message == "it redirects to another place, which is not followed"
        assert other.asked == []


async def test_a_redirect_on_the_same_server_is_followed_with_the_credentials(a_client: MakeClient) -> None:
    with raw_http_server() as server:
        ordinary = dict(server.on)

        async def redirect(exchange: Exchange) -> None:
            server.on.clear()
            await exchange.raw(307, b"", "text/plain", location="/mcp/")
            server.on.update(ordinary)

        server.on["initialize"] = redirect
        async with a_client() as mcp:
            assert await call(mcp, at(server.url, headers=[SECRET_HEADER])) == McpResult("done")
        assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer first-secret-value"}


async def test_a_certificate_is_checked_against_the_name_and_not_the_number(
    a_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=mcp.example"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:mcp.example", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )

    async def loopback(host: str, port: int) -> list[Any]:
        return [ip_address("127.0.0.1")]

    monkeypatch.setattr("pilothouse_runner.adapters.mcp.http_transport.resolve", loopback)
    server = RawServer()
    trusted = ssl.create_default_context(cafile=str(certificate))
    with serving(server, ssl_certfile=str(certificate), ssl_keyfile=str(key)) as port:
        async with a_client(ssl_context=trusted) as mcp:
            assert await call(mcp, at(f"https://mcp.example:{port}/mcp")) == McpResult("done")
            assert server.asked[-1].headers["host"] == f"mcp.example:{port}"
            seen = len(server.asked)
            other = failed(await call(mcp, at(f"https://other.example:{port}/mcp")), "Connection")
            assert "certificate" in other.message.lower()
        async with a_client() as mcp:
            failed(await call(mcp, at(f"https://mcp.example:{port}/mcp")), "Connection")
        assert len(server.asked) == seen


async def test_a_server_that_is_not_there_is_said_to_be_unreachable(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        got = failed(await mcp.list_tools(at("http://127.0.0.1:9/mcp"), 60.0), "Connection")
        assert not got.sent
        assert "127.0.0.1" in got.message
        got = failed(await mcp.list_tools(at("http://no-such-host.invalid/mcp"), 60.0), "Connection")
        assert "cannot be resolved" in got.message


# ---------------------------------------------------------------- sessions that die


async def test_a_call_is_made_again_in_a_new_session_when_the_old_one_is_forgotten(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            assert await call(mcp, at(server.url), text="a") == McpResult("a")
            server.lost_sessions = 1
            assert await call(mcp, at(server.url), text="b") == McpResult("b")
            assert server.methods().count("initialize") == 2
            server.lost_sessions = 5
            got = failed(await call(mcp, at(server.url), text="c"), "Connection")
            assert got == McpFailure("Connection", "it does not know the session any more")
            assert server.methods().count("initialize") == 3


async def test_a_call_that_was_sent_is_never_made_again(a_client: MakeClient) -> None:
    async def cut(exchange: Exchange) -> None:
        part = await exchange.events()
        await part(": hello\n\n")

    with raw_http_server(tools_call=cut) as server:
        async with a_client() as mcp:
            assert isinstance(await mcp.list_tools(at(server.url), 60.0), McpListing)
            got = failed(await call(mcp, at(server.url)), "Connection")
            assert got.sent
        assert server.methods().count("tools/call") == 1


async def test_an_answer_that_breaks_off_is_resumed_by_the_id_of_its_last_event(a_client: MakeClient) -> None:
    answer = {"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": "late"}]}}

    async def interrupt(exchange: Exchange) -> None:
        answer["id"] = exchange.asked.message["id"]
        part = await exchange.events()
        await part("id: 7\nretry: 10\ndata:\n\n")

    async def resume(exchange: Exchange) -> None:
        assert exchange.asked.headers["last-event-id"] == "7"
        part = await exchange.events()
        await part(f"data: {json.dumps(answer)}\n\n")
        await exchange.gone()

    with raw_http_server(tools_call=interrupt, GET=resume) as server:
        async with a_client() as mcp:
            assert await call(mcp, at(server.url)) == McpResult("late")


async def test_an_answer_is_not_resumed_without_end(a_client: MakeClient) -> None:
    async def interrupt(exchange: Exchange) -> None:
        part = await exchange.events()
        await part("id: 7\nretry: 1\ndata:\n\n")

    with raw_http_server(tools_call=interrupt, GET=interrupt) as server:
        async with a_client() as mcp:
            got = failed(await call(mcp, at(server.url)), "Connection")
            assert got.sent
        assert len([asked for asked in server.asked if asked.verb == "GET"]) <= 8


# ---------------------------------------------------------------- hostile answers


async def _html(exchange: Exchange) -> None:
    await exchange.raw(200, b"<html>Welcome</html>", "text/html")


async def _login(exchange: Exchange) -> None:
    await exchange.raw(403, b"<html>Log in</html>", "text/html")


async def _broken_json(exchange: Exchange) -> None:
    await exchange.raw(200, b'{"jsonrpc": "2.0", "id": 1, "resu', "application/json")


async def _deep_json(exchange: Exchange) -> None:
    body = f'{{"jsonrpc":"2.0","id":1,"result":{"[" * 100_000}{"]" * 100_000}}}'
    await exchange.raw(200, body.encode(), "application/json")


async def _accepted(exchange: Exchange) -> None:
    await exchange.raw(202, b"", "application/json")


async def _gateway(exchange: Exchange) -> None:
    await exchange.raw(502, b"<html>Bad gateway</html>", "text/html")


async def _not_found(exchange: Exchange) -> None:
    await exchange.raw(404, b"<html>Not found</html>", "text/html")


async def _gzip(exchange: Exchange) -> None:
    await exchange.raw(200, gzip.compress(b"0" * 10_000_000), "application/json", content_encoding="gzip")


async def _wrong_shape(exchange: Exchange) -> None:
    await exchange.result({"tools": 5, "content": "no", "protocolVersion": []})


async def _bad_events(exchange: Exchange) -> None:
    part = await exchange.events()
    await part("data: {nonsense\n\ndata: []\n\n")
    await exchange.gone()


async def _big_header(exchange: Exchange) -> None:
    await exchange.result({}, x_big="h" * 500_000)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (_html, "Protocol"),
        (_login, "Credentials"),
        (_broken_json, "Protocol"),
        (_deep_json, "Protocol"),
        (_accepted, "Protocol"),
        (_gateway, "Unavailable"),
        (_not_found, "Unavailable"),
        (_gzip, "Protocol"),
        (_wrong_shape, "Protocol"),
        (_bad_events, "Protocol"),
        (_big_header, "Connection"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_what_is_no_answer_of_mcp_is_said_so_at_once(
    method: str, behaviour: Any, kind: str, a_client: MakeClient
) -> None:
    with raw_http_server() as server:
        server.on[method] = behaviour
        async with a_client() as mcp:
            began = time.monotonic()
            got: object
            if method == "tools/call":
                got = await call(mcp, at(server.url, headers=[SECRET_HEADER]))
            else:
                got = await mcp.list_tools(at(server.url, headers=[SECRET_HEADER]), 60.0)
            failed(got, kind)
            assert time.monotonic() - began < 30.0
            server.on.clear()
            assert await call(mcp, at(server.url)) == McpResult("done")


async def test_a_server_of_an_unknown_version_is_not_spoken_to(a_client: MakeClient) -> None:
    async def old(exchange: Exchange) -> None:
        about = {"capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}}
        await exchange.result({"protocolVersion": "1999-01-01", **about})

    with raw_http_server(initialize=old) as server:
        async with a_client() as mcp:
            got = failed(await mcp.list_tools(at(server.url), 60.0), "Protocol")
            assert got.message == "it speaks no version of MCP that is spoken here"
        assert server.methods() == ["initialize"]


async def test_a_call_whose_session_cannot_be_opened_was_not_sent(a_client: MakeClient) -> None:
    async def cut(exchange: Exchange) -> None:
        part = await exchange.events()
        await part(": hello\n\n")

    with raw_http_server() as server:
        for behaviour in (cut, _gateway, _html, _broken_json):
            server.on["initialize"] = behaviour
            async with a_client() as mcp:
                got = await call(mcp, at(server.url))
                assert isinstance(got, McpFailure)
                assert not got.sent
        assert "tools/call" not in server.methods()


async def test_a_call_waits_no_longer_than_it_may_while_another_opens_the_session(a_client: MakeClient) -> None:
    with raw_http_server(initialize=hang) as server:
        async with a_client() as mcp:
            patient = asyncio.create_task(call(mcp, at(server.url), timeout=5.0))
            failed(await call(mcp, at(server.url), timeout=0.5), "Timeout")
            assert not patient.done()
            failed(await patient, "Timeout")


async def test_a_result_of_50_mb_is_cut_off_while_it_is_read(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            got = failed(await call(mcp, at(server.url), "big", size=50_000_000), "TooLarge")
            assert got == McpFailure("TooLarge", "the answer is larger than 1,048,576 bytes", sent=True)
            assert await call(mcp, at(server.url), text="a") == McpResult("a")


async def test_a_result_of_just_the_limit_is_taken(a_client: MakeClient) -> None:
    with sdk_http_server(json_response=True) as server:
        async with a_client() as mcp:
            got = await call(mcp, at(server.url), "big", size=10_000, max_bytes=10_000)
            assert got == McpResult("x" * 10_000)


async def test_a_list_without_end_is_refused(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            server.state.is_endless = True
            server.state.page_size = 100
            got = failed(await mcp.list_tools(at(server.url), 60.0), "TooLarge")
            assert got.message == "it lists more than 512 tools"
            server.state.page_size = 0
            got = failed(await mcp.list_tools(at(server.url), 60.0), "TooLarge")
            assert "does not end" in got.message


async def test_a_list_of_more_than_a_mebibyte_is_refused(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            server.state.tools = [tool(f"t{n}", "d" * 20_000) for n in range(100)]
            got = failed(await mcp.list_tools(at(server.url), 60.0), "TooLarge")
            assert got.message == "the answer is larger than 1,048,576 bytes"


async def test_a_stream_of_events_that_never_answers_is_cut_off(a_client: MakeClient) -> None:
    async def chatter(exchange: Exchange) -> None:
        part = await exchange.events()
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 500}}
        try:
            while True:
                await part(f"data: {json.dumps(note)}\n\n")
                await asyncio.sleep(0)
        except OSError:
            pass

    with raw_http_server(tools_call=chatter) as server:
        async with a_client() as mcp:
            failed(await call(mcp, at(server.url), max_bytes=100_000), "TooLarge")


async def test_a_server_that_asks_back_without_end_gets_so_many_answers(a_client: MakeClient) -> None:
    async def ask_back(exchange: Exchange) -> None:
        part = await exchange.events()
        for number in range(200):
            await part(f"data: {json.dumps({'jsonrpc': '2.0', 'id': f's{number}', 'method': 'ping'})}\n\n")
        seen = 0
        while not seen or len(answers()) > seen:  # until no more of them come
            seen = len(answers())
            await asyncio.sleep(0.5)
        answer = {"jsonrpc": "2.0", "id": exchange.asked.message["id"], "result": {"content": []}}
        await part(f"data: {json.dumps(answer)}\n\n")
        await exchange.gone()

    def answers() -> list[str]:
        return [asked.message["id"] for asked in server.asked if "result" in asked.message]

    with raw_http_server(tools_call=ask_back) as server:
        async with a_client() as mcp:
            assert await call(mcp, at(server.url)) == McpResult("")
            assert 1 <= len(answers()) <= 64


# ---------------------------------------------------------------- hangs and aborts


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call", "notifications/initialized", "DELETE"])
async def test_a_server_that_hangs_costs_its_deadline_and_no_more(method: str, a_client: MakeClient) -> None:
    with raw_http_server() as server:
        server.on[method] = hang
        async with a_client() as mcp:
            began = time.monotonic()
            await mcp.list_tools(at(server.url), 4.0)
            got = await call(mcp, at(server.url), timeout=4.0)
            if method in ("initialize", "tools/call"):
                assert failed(got, "Timeout").message.endswith("within 4 s")
                assert got.sent == (method == "tools/call")
            assert time.monotonic() - began < 40.0


async def test_an_abort_tells_the_server_and_leaves_nothing(
    a_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "COURTESY_SECONDS", 20.0)  # this server only may be slow
    with sdk_http_server() as server:
        async with a_client() as mcp:
            work = asyncio.create_task(call(mcp, at(server.url), "sleep", seconds=60))
            assert await asyncio.to_thread(server.state.called.wait, 40.0)
            began = time.monotonic()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert time.monotonic() - began < 30.0
            assert server.methods()[-1] == "notifications/cancelled"
        await until(lambda: server.state.cancelled == 1)


async def test_an_abort_is_not_held_up_by_a_server_that_hangs(a_client: MakeClient) -> None:
    with raw_http_server() as server:
        server.on["tools/call"] = server.on["notifications/cancelled"] = server.on["DELETE"] = hang
        async with a_client() as mcp:
            work = asyncio.create_task(call(mcp, at(server.url)))
            assert await asyncio.to_thread(server.called.wait, 40.0)
            began = time.monotonic()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert time.monotonic() - began < 30.0


async def test_a_call_that_is_late_does_not_take_those_beside_it_along(a_client: MakeClient) -> None:
    with sdk_http_server() as server:
        async with a_client() as mcp:
            await call(mcp, at(server.url), text="open")
            late = call(mcp, at(server.url), "sleep", timeout=0.5, seconds=60)
            fine = call(mcp, at(server.url), "sleep", seconds=2)
            got = await asyncio.gather(late, fine)
            failed(got[0], "Timeout")
            assert got[1] == McpResult("slept")
            assert server.methods().count("initialize") == 1
