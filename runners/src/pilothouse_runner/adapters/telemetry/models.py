"""How the GenAI conventions of OpenTelemetry call a model and its provider.

The attributes are those of semantic conventions 1.37 and later (`gen_ai.provider.name` instead of `gen_ai.system`),
which the GenAI conventions kept when they moved to a repository of their own. Prompts, arguments and results are
opt-in there and left out here.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from pilothouse_api.structs import ModelEndpoint, Plan
from pilothouse_engine.facts import JudgeStarted, ModelStarted, ReplyReceived

Attributes = dict[str, str | int | float | bool | tuple[str, ...]]

_PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Providers whose prefix in a model's name is not their name in the conventions."""


def endpoint_of(plan: Plan, step_id: str, started: ModelStarted | JudgeStarted) -> ModelEndpoint:
    """Return the endpoint that is asked: a judge asks the agent's model, without its fallbacks."""
    model = plan.agent_of(plan.step(step_id)).model
    return model if isinstance(started, JudgeStarted) else (model, *model.fallbacks)[started.endpoint]


def request_attributes(endpoint: ModelEndpoint) -> Attributes:
    """Return what is known before a call."""
    prefix, slash, name = endpoint.name.partition("/")
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(prefix, prefix if slash else endpoint.name),
        "gen_ai.request.model": name if slash else endpoint.name,
    }
    if endpoint.max_output_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = endpoint.max_output_tokens
    if endpoint.temperature is not None:
        attributes["gen_ai.request.temperature"] = endpoint.temperature
    return attributes | _server(endpoint.api_base)


def _server(api_base: str | None) -> Attributes:
    try:
        parts = urlsplit(api_base or "")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return {}
    return {"server.address": parts.hostname, "server.port": port} if parts.hostname and port else {}


def reply_attributes(fact: ReplyReceived) -> Attributes:
    """Return what a reply says; tokens only as the provider counted them."""
    reason = "length" if fact.finish == "Length" else "tool_calls" if fact.calls else "stop"
    attributes: Attributes = {"gen_ai.response.finish_reasons": (reason,)}
    if fact.counted:
        attributes |= {"gen_ai.usage.input_tokens": fact.input, "gen_ai.usage.output_tokens": fact.output}
    return attributes
