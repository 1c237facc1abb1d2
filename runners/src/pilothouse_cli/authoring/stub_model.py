"""`pilothouse stub-model`: an OpenAI-compatible server that plays a script (engine.md §18).

It is for tests of the real adapters and for demos: chat completions with tools and usage, streamed or not, and every
failure of the script as real HTTP. It remembers in memory which entries it has played; restarting it begins anew.

A chat request does not say what the engine knows, so `match` is judged like this: `step` against the header
X-Pilothouse-Step, and not at all where it is not sent; `turn` against X-Pilothouse-Turn, else against the number of
assistant messages in the request, plus one; `contains` as everywhere. A spent script is answered with status 400.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import Message, ModelRequest, RequestedCall, ToolSpec, Usage
from pilothouse_engine.script import Entry, Raw, Script, ScriptedError, ScriptInvalid, parse_script
from pilothouse_engine.scripted import Played, Spent, arguments_text, next_entry, usage_of

STEP_HEADER = "x-pilothouse-step"
TURN_HEADER = "x-pilothouse-turn"
MODEL_NAME = "scripted"
MAX_REQUEST_BYTES = 32 * 1024 * 1024
CHUNK_CHARS = 16
"""Size of the pieces of a streamed reply: small, so that texts and arguments are split."""

_ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_ENDPOINT = ModelEndpoint(name=MODEL_NAME)
_GARBAGE = "<html><head><title>It works!</title></head><body>This is no model.</body></html>"


class _Player:
    """Which entries were played."""

    def __init__(self, script: Script, delay: float) -> None:
        self.script = script
        self.delay = delay
        self._marks: set[int] = set()

    def next(self, request: ModelRequest) -> Played | Spent:
        """Choose the next entry and mark it; nothing awaits in here, so two requests never get one entry."""
        chosen = next_entry(self.script, request, self._marks)
        if isinstance(chosen, Played):
            self._marks.add(chosen.index)
        return chosen


def build_app(script: Script, delay: float = 0.0) -> Starlette:
    """Return the server as an ASGI application; every reply waits `delay` seconds beside its own."""
    player = _Player(script, delay)

    async def chat(request: Request) -> Response:
        return await _chat(request, player)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "owned_by": "script"}]})

    routes = [
        Route(f"{prefix}/{path}", endpoint, methods=[method])
        for prefix in ("/v1", "")
        for path, endpoint, method in (("chat/completions", chat, "POST"), ("models", models, "GET"))
    ]
    return Starlette(routes=routes)


def serve(
    script_path: str | Path,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[str], None] = print,
    delay: float = 0.0,
) -> None:
    """Serve a script until the process is interrupted; `ready` gets the base address once connections are taken.

    Raises ScriptInvalid for a wrong script, OSError for a file that cannot be read or a port that is taken.
    """
    script = _read(Path(script_path))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        ready(f"http://{shown}:{listener.getsockname()[1]}/v1")
        config = uvicorn.Config(
            build_app(script, delay),
            http="h11",
            lifespan="off",
            log_config=None,
            log_level="critical",  # a reply that is cut on purpose is nothing to complain about
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,  # a Timeout entry holds its connection for ever
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # Ctrl-C is how a person ends it


def _read(path: Path) -> Script:
    try:
        return parse_script(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ScriptInvalid(f"byte {error.start} is no UTF-8; save the script as UTF-8") from None


# ---------------------------------------------------------------- one request


async def _chat(request: Request, player: _Player) -> Response:
    try:
        body = await _body(request)
        asked = read_request(body, request.headers)
    except ValueError as error:
        return _error(400, "invalid_request_error", None, str(error))
    match player.next(asked):
        case Spent(message):
            return _error(400, "invalid_request_error", "script_spent", message)
        case Played(index, entry):
            pass
    if delay := player.delay + entry.delay_seconds:
        await asyncio.sleep(delay)
    if entry.raw is not None:
        return _RawResponse(entry.raw)
    if entry.error is not None:
        return _failure(entry.error, is_streamed=body.get("stream") is True)
    if body.get("stream") is True:
        options = body.get("stream_options")
        with_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        chunks = _chunks(index, entry, asked, with_usage=with_usage)
        return StreamingResponse(_events(chunks), media_type="text/event-stream")
    return JSONResponse(_completion(index, entry, asked))


async def _body(request: Request) -> Mapping[str, Any]:
    size, chunks = 0, []
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_REQUEST_BYTES:
            raise ValueError(f"the request has more than {MAX_REQUEST_BYTES} bytes")
        chunks.append(chunk)
    try:
        body = json.loads(b"".join(chunks))
    except (ValueError, RecursionError):
        raise ValueError("the request is no JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise ValueError("the request has no list of messages")
    return body


def read_request(body: Mapping[str, Any], headers: Mapping[str, str]) -> ModelRequest:
    """Return a chat request as the engine's value; raises ValueError for what is none."""
    if not all(isinstance(raw, Mapping) for raw in body["messages"]):
        raise ValueError("a message is no object")
    messages = tuple(_message(raw) for raw in body["messages"])
    turn = headers.get(TURN_HEADER, "")
    tools = body.get("tools")
    return ModelRequest(
        endpoint=_ENDPOINT,
        messages=messages,
        tools=tuple(_tool(raw) for raw in tools if isinstance(raw, Mapping)) if isinstance(tools, list) else (),
        step=headers.get(STEP_HEADER, ""),
        turn=int(turn) if turn.isascii() and turn.isdigit() else 1 + sum(m.role == "assistant" for m in messages),
    )


def _message(raw: Mapping[str, Any]) -> Message:
    named = raw.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise ValueError(f"a message has the role {json.dumps(named)[:40]}; use system, user, assistant or tool")
    content = raw.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    calls = raw.get("tool_calls")
    return Message(
        role=role,
        text="".join(text for text in texts if isinstance(text, str)),
        calls=tuple(_requested(call) for call in calls if isinstance(call, Mapping)) if isinstance(calls, list) else (),
        provider_id=str(raw.get("tool_call_id") or ""),
    )


def _requested(raw: Mapping[str, Any]) -> RequestedCall:
    function = raw.get("function")
    function = function if isinstance(function, Mapping) else {}
    return RequestedCall(
        str(raw.get("id") or ""), str(function.get("name") or ""), str(function.get("arguments") or "")
    )


def _tool(raw: Mapping[str, Any]) -> ToolSpec:
    function = raw.get("function")
    function = function if isinstance(function, Mapping) else {}
    parameters = function.get("parameters")
    return ToolSpec(
        name=str(function.get("name") or ""),
        description=str(function.get("description") or ""),
        parameters=parameters if isinstance(parameters, Mapping) else {},
    )


# ---------------------------------------------------------------- replies


def _head(index: int, kind: str) -> dict[str, Any]:
    # created stands still: a reply depends on the script and the request, on nothing else.
    return {"id": f"chatcmpl-{index}", "object": kind, "created": 0, "model": MODEL_NAME}


def _completion(index: int, entry: Entry, asked: ModelRequest) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": entry.text}
    if entry.tool_calls:
        message["tool_calls"] = _calls(index, entry, asked)
    reply = _head(index, "chat.completion")
    reply["choices"] = [{"index": 0, "message": message, "finish_reason": _finish(entry)}]
    if (usage := _usage(usage_of(entry, asked))) is not None:
        reply["usage"] = usage
    return reply


def _calls(index: int, entry: Entry, asked: ModelRequest) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{asked.turn}_{index}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for number, call in enumerate(entry.tool_calls)
    ]


def _finish(entry: Entry) -> str:
    if entry.finish == "Length":
        return "length"
    return "tool_calls" if entry.tool_calls else "stop"


def _usage(usage: Usage) -> dict[str, Any] | None:
    if usage.input is None and usage.output is None:
        return None
    total = None if usage.input is None or usage.output is None else usage.input + usage.output
    return {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": total}


def _chunks(index: int, entry: Entry, asked: ModelRequest, *, with_usage: bool) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _head(index, "chat.completion.chunk") | {"choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(entry.text or ""):
        yield chunk({"content": piece})
    for number, call in enumerate(_calls(index, entry, asked)):
        function = call["function"]
        yield chunk({"tool_calls": [call | {"index": number, "function": function | {"arguments": ""}}]})
        for piece in _pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(entry))
    usage = _usage(usage_of(entry, asked))
    if with_usage and usage is not None:
        yield _head(index, "chat.completion.chunk") | {"choices": [], "usage": usage}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + CHUNK_CHARS] for start in range(0, len(text), CHUNK_CHARS))


async def _events(chunks: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    for chunk in chunks:
        yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


# ---------------------------------------------------------------- failures


def _failure(error: ScriptedError, *, is_streamed: bool) -> Response:
    wait = error.retry_after_seconds
    headers = {} if wait is None else {"retry-after": f"{wait:g}"}
    match error.kind:
        case "RateLimited":
            return _error(429, "rate_limit_error", "rate_limit_exceeded", "Rate limit reached.", headers)
        case "ServerError":
            return _error(500, "server_error", None, "The server had an error while processing your request.", headers)
        case "Authentication":
            return _error(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided.", headers)
        case "ContextWindowExceeded":
            words = "This model's maximum context length is 8192 tokens. Please reduce the length of the messages."
            return _error(400, "invalid_request_error", "context_length_exceeded", words, headers)
        case "Refused":
            words = "Your request was rejected as a result of our safety system."
            return _error(400, "invalid_request_error", "content_policy_violation", words, headers)
        case "Garbage":
            return Response(_GARBAGE, media_type="text/html", headers=headers)
        case "Timeout":
            return _HangingResponse()
        case "Disconnect":
            kind = "text/event-stream" if is_streamed else "application/json"
            begin = b'data: {"choices": [' if is_streamed else b'{"choices": [{"index": 0, "message": {"rol'
            return _CutResponse(200, {"content-type": kind, "content-length": "4096"}, begin)


def _error(
    status: int, kind: str, code: str | None, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status, dict(headers or {}))


class _HangingResponse(Response):
    """Never answers; ends when the client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class _CutResponse(Response):
    """Sends less than it announces, then drops the connection."""

    def __init__(self, status: int, headers: Mapping[str, str], begin: bytes) -> None:
        super().__init__(begin, status)
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # A body that never ends: the server closes the connection when the application returns.
        await send({"type": "http.response.body", "body": self.body, "more_body": True})


class _RawResponse(_CutResponse):
    """Sends the script's own bytes. A content-length that promises more than there is cuts the connection."""

    def __init__(self, raw: Raw) -> None:
        body = raw.body if isinstance(raw.body, bytes) else raw.body.encode("utf-8", "replace")
        super().__init__(raw.status, raw.headers, body)
        lengths = [value for name, value in self.raw_headers if name == b"content-length"]
        if not lengths:
            self.raw_headers.append((b"content-length", str(len(body)).encode("ascii")))
        promised = int(lengths[0]) if lengths and lengths[0].isdigit() else len(body)
        self._is_cut = promised > len(body)
        self.body = body[:promised]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_cut:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})
