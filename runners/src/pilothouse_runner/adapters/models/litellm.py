"""Calls every other provider through LiteLLM, which is imported at the first call and never before."""

import asyncio
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from msgspec.structs import replace

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import (
    FailureKind,
    ModelFailure,
    ModelReply,
    ModelRequest,
    Secrets,
    SecretUnavailable,
    ToolSpec,
)
from pilothouse_runner.adapters.models import price_table
from pilothouse_runner.adapters.models.chat import encode_messages, encode_tools, parse_reply
from pilothouse_runner.adapters.models.failures import (
    MAX_PROBLEM_CHARS,
    Problem,
    failure_kind,
    may_be_charged,
    retry_after,
    stated_problem,
)
from pilothouse_runner.adapters.models.redaction import Redaction, shortened

_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else the import fetches a price list from the internet
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_MODE": "PRODUCTION",  # else the import reads a .env file of the working folder
}

# By class name, so that nothing has to be imported to name them. Decides where a class says more than its status.
_KIND_OF_CLASS: Mapping[str, FailureKind] = {
    "ContextWindowExceededError": "ContextWindowExceeded",
    "ContentPolicyViolationError": "Refused",
    "Timeout": "Timeout",
    "APITimeoutError": "Timeout",
    "APIConnectionError": "Connection",
    "APIResponseValidationError": "Garbage",
    "JSONDecodeError": "Garbage",
    "UnsupportedParamsError": "InvalidRequest",
    "BudgetExceededError": "InvalidRequest",
}

_LENGTH_WORDS = ("model_length", "max_output_tokens", "token_limit", "ERROR_LIMIT")
"""Words of providers for a cut reply that LiteLLM does not know: what it does not know it calls a full stop."""

_MADE_UP_STATUSES = (422, 500)
"""What LiteLLM puts where a reply of status 200 holds an error, or is none."""
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "ClientConnectorError"})


class LiteLLMModel:
    """Port `Model` for whatever LiteLLM knows. Its own retries are off: the engine counts attempts."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        """Make one attempt; ends within `timeoutSeconds`, the first one after the import (seconds)."""
        endpoint = request.endpoint
        key = self._key(endpoint)
        if isinstance(key, ModelFailure):
            return key
        library = await _library()
        if library is None:
            return ModelFailure("InvalidRequest", shortened(_not_installed(endpoint)))
        redaction = Redaction(key, request)
        try:
            async with asyncio.timeout(endpoint.timeout_seconds) as deadline:
                response = await library.acompletion(**arguments_of(request, key))
        except Exception as error:  # whatever the code of a provider raises: nothing of ours runs inside
            if isinstance(error, TimeoutError) and deadline.expired():
                seconds = endpoint.timeout_seconds
                message = f"{endpoint.name}: no whole reply within {seconds} s (model.timeoutSeconds)"
                return ModelFailure("Timeout", shortened(message), sent=True)
            return failure_of(error, endpoint, redaction)
        result = parse_reply(response.model_dump(warnings=False), request, redaction)
        if isinstance(result, ModelFailure):
            return replace(result, message=shortened(f"{endpoint.name}: {result.message}"))
        return result

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        """Return US dollars per million (input, output) tokens, or None."""
        return price_table.price(endpoint)

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        """Return the context window in tokens, or None."""
        return price_table.context_window(endpoint)

    async def aclose(self) -> None:
        """Close the connections that LiteLLM keeps."""
        library = sys.modules.get("litellm")
        if library is not None:
            await library.close_litellm_async_clients()

    def _key(self, endpoint: ModelEndpoint) -> str | ModelFailure:
        ref = endpoint.api_key_secret_ref
        if ref is None:
            return ""  # LiteLLM reads the provider's own variable
        try:
            key = self._secrets.read(ref.name, ref.key).strip()
        except SecretUnavailable as error:
            return ModelFailure("Authentication", shortened(f"{error}; see model.apiKeySecretRef"))
        if not key:
            message = f"key {ref.key} of Secret {ref.name} is empty; see model.apiKeySecretRef"
            return ModelFailure("Authentication", message)
        return key


def arguments_of(request: ModelRequest, key: str) -> dict[str, Any]:
    """Return the keyword arguments of LiteLLM's call."""
    endpoint = request.endpoint
    optional = {
        "temperature": endpoint.temperature,
        "max_tokens": endpoint.max_output_tokens,
        "api_base": endpoint.api_base,
        "api_key": key or None,
        "tools": encode_tools(_offered(request)) or None,
        "response_format": request.response_format,
    }
    return {
        "model": endpoint.name,
        "messages": encode_messages(request),
        "timeout": endpoint.timeout_seconds,
        "num_retries": 0,
        "max_retries": 0,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _offered(request: ModelRequest) -> tuple[ToolSpec, ...]:
    """Return the tools to offer; Bedrock refuses a prompt with earlier calls and no tools, as a wrap-up turn has."""
    if request.tools or not request.endpoint.name.startswith("bedrock/"):
        return request.tools
    names = dict.fromkeys(call.name for message in request.messages for call in message.calls)
    return tuple(ToolSpec(name, "Not available any more.", {"type": "object"}) for name in names)


def failure_of(error: Exception, endpoint: ModelEndpoint, redaction: Redaction) -> ModelFailure:
    """Say what an exception of LiteLLM means, by class names, its status, and what it was raised from."""
    links = _links(error)
    transport = next((link for link in links if "TransportError" in _class_names(link)), None)
    status = getattr(error, "status_code", None)
    if not any("HTTPStatusError" in _class_names(link) for link in links) and status in _MADE_UP_STATUSES:
        status = None
    said = str(transport or getattr(error, "message", None) or error).partition("Traceback (most recent call last)")[0]
    problem = _problem(error, status, said)
    kind = next((_KIND_OF_CLASS[name] for name in _class_names(error) if name in _KIND_OF_CLASS), None)
    if kind is None and transport is not None:
        kind = "Timeout" if "TimeoutException" in _class_names(transport) else "Connection"
    kind = kind or failure_kind(problem)
    is_unsent = any(not _UNSENT.isdisjoint(_class_names(link)) for link in links)
    return ModelFailure(
        kind=kind,
        message=shortened(f"{endpoint.name}: {redaction.excerpt(said) or type(error).__name__}"),
        status=None if transport is not None else problem.status,
        retry_after=retry_after(_headers(error)),
        sent=not is_unsent if kind == "Connection" else may_be_charged(kind, problem.status),
    )


def _links(error: BaseException) -> list[BaseException]:
    """Return the exception and what it was raised from, at most 12 links."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(links) < 12:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _class_names(error: BaseException) -> list[str]:
    return [cls.__name__ for cls in type(error).__mro__]


def _problem(error: Exception, status: object, said: str) -> Problem:
    """Read the provider's code out of an exception; LiteLLM puts it in the body, or where the status belongs."""
    number = status if isinstance(status, int) and 100 <= status <= 599 else None
    body = getattr(error, "body", None)
    stated = stated_problem(body, number) if isinstance(body, Mapping) else None
    codes = [stated.code if stated is not None else "", status if isinstance(status, str) else ""]
    return Problem(number, " ".join(code for code in codes if code)[:200], said[:MAX_PROBLEM_CHARS])


def _headers(error: Exception) -> dict[str, str]:
    """Return the headers of the response that an exception carries, with lower-case names."""
    of_response = getattr(getattr(error, "response", None), "headers", None)
    for headers in (getattr(error, "litellm_response_headers", None), of_response):
        if isinstance(headers, Mapping) and headers:
            return {str(name).lower().removeprefix("llm_provider-"): str(value) for name, value in headers.items()}
    return {}


async def _library() -> Any:
    """Return LiteLLM, imported off the loop because it takes seconds; None where it is not installed."""
    if find_spec("litellm") is None:
        return None
    return await asyncio.to_thread(_import)


def _import() -> Any:
    os.environ.update({name: value for name, value in _ENVIRONMENT.items() if name not in os.environ})
    library: Any = importlib.import_module("litellm")
    library.suppress_debug_info = True
    library.telemetry = False
    words = getattr(importlib.import_module("litellm.litellm_core_utils.core_helpers"), "_FINISH_REASON_MAP", None)
    if isinstance(words, dict):
        words.update({word: "length" for word in _LENGTH_WORDS if word not in words})
    # A provider's odd reply is read by parse_reply; the warning would put its content into the log.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # it logs prompts and parts of keys
    return library


def _not_installed(endpoint: ModelEndpoint) -> str:
    return (
        f"model.name {endpoint.name} needs LiteLLM, which is not installed: install pilothouse[litellm], or name an "
        "OpenAI-compatible endpoint as openai/<model> with apiBase"
    )
