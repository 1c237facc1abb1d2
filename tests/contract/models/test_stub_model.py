"""`pilothouse stub-model` itself, asked by a plain HTTP client."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pilothouse_cli.authoring.stub_model import build_app, serve
from pilothouse_engine.script import ScriptInvalid, parse_script, read_script
from support.stub_models import serving, stub_server

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a refund, please"}]}


async def post(url: str, body: Any = ASK, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=200) as client:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post(f"{url}/chat/completions", content=content, headers=headers)


async def test_models_are_listed() -> None:
    with stub_server(parse_script("turns: [{text: a}]")) as server:
        async with httpx.AsyncClient(trust_env=False) as client:
            listed = (await client.get(f"{server.url}/models")).json()
    assert [model["id"] for model in listed["data"]] == ["scripted"]


async def test_what_matches_is_judged_by_what_a_request_can_say() -> None:
    script = """
    turns:
    - {match: {step: review}, text: by step}
    - {match: {turn: 3}, text: by turn}
    - {match: {contains: refund}, text: by text}
    - {text: any}
    """
    second = {"role": "assistant", "content": "x"}
    third = ASK | {"messages": [*ASK["messages"], second, second, {"role": "user", "content": "on"}]}
    with stub_server(parse_script(script)) as server:
        seen = [
            await post(server.url, headers={"X-Pilothouse-Step": "classify"}),
            await post(server.url, third, headers={"X-Pilothouse-Step": "classify"}),
            await post(server.url),
            await post(server.url),
            await post(server.url),
        ]
    assert [(r.status_code, r.json()["choices"][0]["message"]["content"]) for r in seen[:4]] == [
        (200, "by text"),
        (200, "by turn"),
        (200, "by step"),
        (200, "any"),
    ]
    assert (seen[4].status_code, seen[4].json()["error"]["code"]) == (400, "script_spent")


async def test_a_streamed_reply_holds_the_same_as_a_whole_one() -> None:
    script = """
    turns:
    - text: "a text that is longer than one chunk of the stream, naïve 🙂"
      toolCalls: [{name: lookup, arguments: {customer: "c-17, and more of it"}}, {name: ping}]
      usage: {input: 5, output: 6}
    repeat: Last
    """
    streamed = ASK | {"stream": True, "stream_options": {"include_usage": True}}
    with stub_server(parse_script(script)) as server:
        whole = (await post(server.url)).json()
        response = await post(server.url, streamed)
        bare = await post(server.url, ASK | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"] == whole["usage"]
    assert "usage" not in bare.text
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    calls: dict[int, dict[str, Any]] = {}
    for piece in (call for delta in deltas for call in delta.get("tool_calls", [])):
        kept = calls.setdefault(piece["index"], {"id": piece.get("id"), "name": "", "arguments": ""})
        kept["name"] += piece["function"].get("name", "")
        kept["arguments"] += piece["function"]["arguments"]
    assert list(calls.values()) == [{"id": c["id"], **c["function"]} for c in message["tool_calls"]]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"messages": 1}', b'{"messages": [1]}', b'{"messages": [{"role": "king"}]}', b"[" * 100_000],
)
async def test_a_request_of_another_form_is_refused_and_plays_nothing(body: bytes) -> None:
    # Served without the recorder, which expects JSON.
    with serving(build_app(parse_script("turns: [{text: a}]"))) as port:
        url = f"http://127.0.0.1:{port}/v1"
        refused = await post(url, body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await post(url)).json()["choices"][0]["message"]["content"] == "a"


async def test_raw_bytes_come_as_they_were_written() -> None:
    script = read_script(
        {
            "turns": [
                {"raw": {"status": 418, "headers": {"X-Odd": "1"}, "body": b"\x00\xff not JSON"}},
                {"raw": {"headers": {"content-length": "50"}, "body": "short"}},
            ]
        }
    )
    with stub_server(script) as server:
        odd = await post(server.url)
        with pytest.raises(httpx.RemoteProtocolError):
            await post(server.url)
    assert (odd.status_code, odd.headers["x-odd"], odd.content) == (418, "1", b"\x00\xff not JSON")
    assert set(odd.headers) == {"x-odd", "content-length"}


@pytest.mark.slow
async def test_hundreds_of_requests_each_get_the_next_entry() -> None:
    with serving(build_app(read_script({"turns": [{"text": str(n)} for n in range(400)]}))) as port:
        async with httpx.AsyncClient(trust_env=False, timeout=200) as client:
            texts: list[str] = []
            for _ in range(20):
                replies = await asyncio.gather(
                    *(client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK) for _ in range(20))
                )
                texts += [reply.json()["choices"][0]["message"]["content"] for reply in replies]
    assert sorted(texts, key=int) == [str(n) for n in range(400)]


@pytest.mark.parametrize(
    ("content", "want"), [(b"turns: \xff", "byte 7 is no UTF-8"), (b"turns: []", "line 1: turns: ")]
)
async def test_a_wrong_script_is_refused_before_anything_is_served(tmp_path: Path, content: bytes, want: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_bytes(content)
    with pytest.raises(ScriptInvalid, match=want):
        serve(path, ready=lambda url: pytest.fail(f"served at {url}"))


@pytest.mark.slow
async def test_the_server_says_where_it_listens_and_ends_on_an_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text("turns: [{text: served}, {error: {kind: Timeout}}, {error: {kind: Disconnect}}]")
    served = f"serve({str(path)!r}, ready=lambda url: print(url, flush=True))"
    code = f"from pilothouse_cli.authoring.stub_model import serve; {served}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    assert url.startswith("http://127.0.0.1:")
    assert (await post(url)).json()["choices"][0]["message"]["content"] == "served"
    body = json.dumps(ASK).encode()
    _, hanging = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    hanging.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await hanging.drain()
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out, err) == (0, b"", b"")
    hanging.close()
