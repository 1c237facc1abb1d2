"""One way to play a script against every adapter of the port Model."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import Message, Model, ModelFailure, ModelReply, ModelRequest
from pilothouse_engine.script import Script, parse_script
from pilothouse_engine.scripted import ScriptedModel
from pilothouse_runner.adapters.models.litellm import LiteLLMModel
from pilothouse_runner.adapters.models.openai import OpenAIModel
from support.stub_models import StubServer, stub_server

KEY = "sk-very-secret-key-0123456789"
PROMPT = "The customer's secret account number is 4711-0815-2342-1234."
MESSAGES = (Message("system", "You are brief, and you never tell a secret."), Message("user", PROMPT))

AdapterName = Literal["scripted", "openai", "litellm"]


class OneSecret:
    def read(self, name: str, key: str) -> str:
        assert (name, key) == ("model", "token")
        return f"{KEY}\n"


class NoWaitClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None


class Adapter:
    """One adapter with one script: `call` plays the next entry, as a run with its journal would."""

    def __init__(self, name: AdapterName, script: Script, script_text: str, stack: ExitStack) -> None:
        self.name = name
        self._script_text = script_text
        self._marks: tuple[int, ...] = ()
        self._server = stub_server(script) if name != "scripted" else None
        self.server: StubServer | None = stack.enter_context(self._server) if self._server else None
        self.restart()

    def restart(self) -> None:
        """Begin anew as after a crash: nothing is left but the journal's marks and the server's position."""
        secrets = OneSecret()
        builders: dict[AdapterName, Callable[[], Model]] = {
            "scripted": lambda: ScriptedModel(NoWaitClock()),
            "openai": lambda: OpenAIModel(secrets, environ={}),
            "litellm": lambda: LiteLLMModel(secrets),
        }
        self.model = builders[self.name]()

    def endpoint(self, **changes: Any) -> ModelEndpoint:
        if self.server is None:
            return ModelEndpoint.read({"name": "scripted", "script": {"inline": "-"}} | changes)
        base = {
            "name": "openai/scripted",
            "apiBase": self.server.url,
            "apiKeySecretRef": {"name": "model", "key": "token"},
            "timeoutSeconds": 20,
        }
        return ModelEndpoint.read(base | changes)

    async def call(self, request: ModelRequest | None = None, **changes: Any) -> ModelReply | ModelFailure:
        request = request or ModelRequest(self.endpoint(**changes), MESSAGES, turn=1)
        if self.server is None:
            request = replace(request, script=self._script_text, marks=self._marks)
        result = await self.model.call(request)
        assert isinstance(result, ModelReply | ModelFailure)
        if self.server is None and result.mark is not None:
            self._marks += (result.mark,)
        if isinstance(result, ModelFailure):
            check_shows_nothing(result.message)
        return result

    async def reply(self, request: ModelRequest | None = None, **changes: Any) -> ModelReply:
        result = await self.call(request, **changes)
        assert isinstance(result, ModelReply), result
        return result

    async def failure(self, request: ModelRequest | None = None, **changes: Any) -> ModelFailure:
        result = await self.call(request, **changes)
        assert isinstance(result, ModelFailure), result
        return result


def check_shows_nothing(message: str) -> None:
    """What every failure of every test must keep."""
    assert 0 < len(message) <= 500
    assert message.isprintable()
    for secret in (KEY, PROMPT):
        for start in range(len(secret) - 16):
            assert secret[start : start + 16] not in message
    assert "Traceback" not in message


MakeAdapter = Callable[..., Adapter]


@pytest.fixture
async def make_adapter() -> AsyncIterator[MakeAdapter]:
    """Build an adapter that plays a script: a YAML text, or a Script for what no YAML should hold."""
    with ExitStack() as stack:
        made: list[Adapter] = []

        def make(name: AdapterName, script: str | Script) -> Adapter:
            parsed = parse_script(script) if isinstance(script, str) else script
            made.append(Adapter(name, parsed, script if isinstance(script, str) else "", stack))
            return made[-1]

        yield make
        for adapter in made:
            if isinstance(adapter.model, OpenAIModel | LiteLLMModel):
                await adapter.model.aclose()
