"""Models: one adapter for each way to reach one, chosen by the endpoint's name.

Each adapter is imported when an endpoint needs it: importing this package costs no HTTP client, YAML or LiteLLM.
"""

from functools import cached_property
from typing import TYPE_CHECKING

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import Clock, Model, ModelFailure, ModelReply, ModelRequest, Secrets

if TYPE_CHECKING:
    from pilothouse_engine.scripted import ScriptedModel
    from pilothouse_runner.adapters.models.litellm import LiteLLMModel
    from pilothouse_runner.adapters.models.openai import OpenAIModel

SCRIPTED = "scripted"
OPENAI_PREFIX = "openai/"


class ModelRouter:
    """Port `Model` that hands each request to the adapter of its endpoint: scripted, OpenAI-compatible, LiteLLM."""

    def __init__(self, secrets: Secrets, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        """Make one attempt with the adapter of the request's endpoint."""
        return await self._adapter(request.endpoint).call(request)

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        """Return US dollars per million (input, output) tokens, or None."""
        return self._adapter(endpoint).price(endpoint)

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        """Return the context window in tokens, or None."""
        return self._adapter(endpoint).context_window(endpoint)

    async def aclose(self) -> None:
        """Close the connections of the adapters that were used."""
        for name in ("_openai", "_litellm"):
            if name in self.__dict__:
                await self.__dict__[name].aclose()

    def _adapter(self, endpoint: ModelEndpoint) -> Model:
        if endpoint.name == SCRIPTED:
            return self._scripted
        return self._openai if endpoint.name.startswith(OPENAI_PREFIX) else self._litellm

    @cached_property
    def _scripted(self) -> "ScriptedModel":
        from pilothouse_engine.scripted import ScriptedModel

        return ScriptedModel(self._clock)

    @cached_property
    def _openai(self) -> "OpenAIModel":
        from pilothouse_runner.adapters.models.openai import OpenAIModel

        return OpenAIModel(self._secrets)

    @cached_property
    def _litellm(self) -> "LiteLLMModel":
        from pilothouse_runner.adapters.models.litellm import LiteLLMModel

        return LiteLLMModel(self._secrets)
