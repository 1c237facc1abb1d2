"""How an APICall becomes one HTTP request: templates filled in so that a value stays a value wherever it stands."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus, urlencode, urlsplit

from pilothouse_api.structs import APICall
from pilothouse_api.templates import MissingPath, render, render_value
from pilothouse_engine.ports import HttpRequest, Secrets
from pilothouse_engine.steps.contract import StepCall
from pilothouse_engine.strict_json import JsonError, check_json, parse_json

IDEMPOTENCY_KEY = "Idempotency-Key"
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_CLIENTS_OWN = frozenset({"content-length", "transfer-encoding", "connection", "host", "upgrade", "te", "trailer"})
_DOT_SEGMENT = re.compile(r"/\.\.?(?=/|$)")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class RequestProblem(Exception):
    """The request cannot be built; nothing is sent. Carries the cause and a message without any value."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message


def build_request(call: StepCall, params: APICall, secrets: Secrets, timeout: float) -> HttpRequest:
    """Return the request of one attempt; secrets are read anew.

    Raises RequestProblem, and SecretUnavailable when a secret of a header cannot be read: a call is never sent
    without it.
    """
    try:
        url = _url_of(params, call.context)
        headers = _headers_of(params, call, secrets)
        body = _body_of(params, call.context, headers)
    except MissingPath as missing:
        raise RequestProblem("MissingContext", f"apiCall: {missing}") from None
    return HttpRequest(
        method=params.method,
        url=url,
        headers=tuple(headers.values()),
        body=body,
        timeout=timeout,
        max_bytes=call.settings.max_response_bytes,
    )


def shown_request(params: APICall, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a policy judges of the request: `method`, `url` and `body`, and no headers.

    Raises RequestProblem and MissingPath, as `build_request` does.
    """
    shown: dict[str, Any] = {"method": params.method, "url": _url_of(params, context)}
    if params.body is not None:
        types = (h.value for h in params.headers if h.name.lower() == "content-type" and h.value is not None)
        media_type = render(next(types, ""), context)
        is_json = not isinstance(params.body, str) or is_json_type(media_type)
        body = _parse_body(params.body) if is_json and isinstance(params.body, str) else params.body
        shown["body"] = render_value(body, context) if is_json else render(str(body), context)
    return shown


def origin_of(url: str) -> str:
    """Return scheme and host of an address, what may be shown of it: path and query hold values."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "an invalid address"


# ---------------------------------------------------------------- url


def _url_of(params: APICall, context: Mapping[str, Any]) -> str:
    template = params.url.split("#", 1)[0]
    path, mark, query = template.partition("?")
    url = render(path, context, _quote_segment)
    if _DOT_SEGMENT.search(url):
        # A server would resolve them: /accounts/.. is another place than the author wrote.
        raise RequestProblem("InvalidUrl", "apiCall.url has a path segment . or .. once its templates are filled in")
    pairs = [(name, render(text, context)) for name, text in params.query.items()]
    parts = [render(query, context, _quote)] if mark else []
    if pairs:
        parts.append(urlencode(pairs, quote_via=quote, safe="", errors="replace"))
    joined = "&".join(part for part in parts if part)
    return f"{url}?{joined}" if joined else url


def _quote(text: str) -> str:
    if text.isalnum() and text.isascii():  # most are: ids and numbers
        return text
    return quote(text, safe="", errors="replace")


def _quote_segment(text: str) -> str:
    if not text:
        # DELETE /accounts/{{ id }} with an empty id is DELETE /accounts/.
        raise RequestProblem("InvalidUrl", "a template in the path of apiCall.url is empty")
    return _quote(text)


# ---------------------------------------------------------------- headers

_Headers = dict[str, tuple[str, str]]
"""Headers by lower-case name."""


def _headers_of(params: APICall, call: StepCall, secrets: Secrets) -> _Headers:
    headers: _Headers = {}
    for header in params.headers:
        name = header.name.lower()
        if name in _CLIENTS_OWN:
            raise RequestProblem("InvalidHeader", f"apiCall.headers: {header.name} is set by the client; remove it")
        if header.value_from is not None:
            ref = header.value_from.secret_key_ref
            value = secrets.read(ref.name, ref.key)
        else:
            value = render(header.value or "", call.context)
        if _CONTROL.search(value):
            raise RequestProblem(
                "InvalidHeader", f"apiCall.headers: the value of {header.name} has a line break or control character"
            )
        headers[name] = (header.name, value.strip())
    if call.idempotency_key is not None:
        headers.setdefault(IDEMPOTENCY_KEY.lower(), (IDEMPOTENCY_KEY, call.idempotency_key))
    return headers


# ---------------------------------------------------------------- body


def _body_of(params: APICall, context: Mapping[str, Any], headers: _Headers) -> bytes | None:
    """Return the body, and set its content type where the author did not."""
    if params.body is None:
        return None
    if not isinstance(params.body, str):
        headers.setdefault("content-type", ("Content-Type", _JSON))
        return _encode_json(render_value(params.body, context))
    media_type = headers.setdefault("content-type", ("Content-Type", "text/plain; charset=utf-8"))[1]
    if is_json_type(media_type):
        return _encode_json(render_value(_parse_body(params.body), context))
    if media_type.split(";")[0].strip().lower() == _FORM:
        return render(params.body, context, lambda text: quote_plus(text, errors="replace")).encode("utf-8", "replace")
    return render(params.body, context).encode("utf-8", "replace")


def is_json_type(media_type: str) -> bool:
    """Tell whether a content type says JSON (`application/json`, `application/problem+json`)."""
    essence = media_type.split(";")[0].strip().lower()
    return essence == _JSON or essence.endswith("+json")


def _parse_body(text: str) -> Any:
    """Return the JSON of a body that is written as a string: a value that is pasted into a text could add keys."""
    try:
        return parse_json(text)
    except JsonError as error:
        raise RequestProblem(
            "InvalidBody",
            f"apiCall.body is a string that is no JSON ({error}), but Content-Type says JSON; write it as a JSON value",
        ) from None


def _encode_json(value: Any) -> bytes:
    try:
        check_json(value)
    except JsonError as error:
        raise RequestProblem("InvalidBody", f"apiCall.body: {error}") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
