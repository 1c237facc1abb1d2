"""The platform's table of judge models: chart value `judge.models`, or a file that `pilothouse run` is given.

A Supervisor names an entry and brings nothing of its own, so nobody can point the platform's key elsewhere.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from pilothouse_api import structs
from pilothouse_api.v1alpha1.base import Model
from pilothouse_api.v1alpha1.common import Name, SecretKeyRef, Url
from pilothouse_engine.script import MAX_SCRIPT_BYTES, ScriptInvalid, parse_script
from pilothouse_runner.adapters.models import SCRIPTED

MAX_TABLE_BYTES = 4 * MAX_SCRIPT_BYTES

AnswerFormat = Literal["JsonSchema", "JsonObject", "Text"]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TableInvalid(ValueError):
    """A table that cannot be used; the message names the field."""


class JudgeModel(Model):
    """One entry."""

    name: Name
    """The name that `judge.model` of a Supervisor takes."""
    model: Annotated[str, Field(min_length=1, max_length=253)]
    """A LiteLLM model string (`openai/gpt-4.1-mini`), or `scripted` for the scripted model."""
    script: Annotated[str, Field(min_length=1, max_length=MAX_SCRIPT_BYTES)] | None = None
    """The script that the scripted model plays, as a text of YAML; only it takes one, and it needs one."""
    api_base: Url | None = None
    """Base address of an OpenAI-compatible endpoint, or of the provider's API."""
    api_key_secret_ref: SecretKeyRef | None = None
    """The key of the endpoint: of the judge's namespace; read anew for each question."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature; the provider's default where unset."""
    max_output_tokens: Annotated[int, Field(ge=16, le=100_000)] = 1024
    """Longest answer, in tokens; a model that thinks needs room for its thoughts too."""
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 60
    """Most that one verdict may take, whatever a Supervisor asks for."""
    answer_format: AnswerFormat = "JsonSchema"
    """How the endpoint is told the form of the answer: by `response_format` with a schema, or with an object of any
    form, or by the prompt alone, where it refuses both."""

    @model_validator(mode="after")
    def _script_fits(self) -> Self:
        if (self.model == SCRIPTED) != (self.script is not None):
            raise ValueError("model: scripted needs script, and only it takes one")
        if self.script is not None:
            try:
                parse_script(self.script)
            except ScriptInvalid as error:
                raise ValueError(f"script: {error}") from None
        return self

    def endpoint(self, seconds: int) -> structs.ModelEndpoint:
        """Return how the model is reached, for one call that may take so many seconds."""
        key = self.api_key_secret_ref
        return structs.ModelEndpoint(
            name=self.model,
            api_base=self.api_base,
            api_key_secret_ref=structs.SecretKeyRef.read(key.to_raw()) if key is not None else None,
            temperature=self.temperature,
            max_output_tokens=self.max_output_tokens,
            timeout_seconds=seconds,
        )


class _Table(Model):
    models: Annotated[list[JudgeModel], Field(max_length=64)]

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [model.name for model in self.models]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the name {twice} stands twice")
        return self


JudgeModels = Mapping[str, JudgeModel]
"""The table by name."""


def load_models(path: Path) -> JudgeModels:
    """Return the table of a YAML file `models: [...]`; raises TableInvalid."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        raise TableInvalid(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_TABLE_BYTES:
        raise TableInvalid(f"{path} has more than {MAX_TABLE_BYTES:,} bytes")
    try:
        return parse_models(raw.decode())
    except UnicodeDecodeError:
        raise TableInvalid(f"{path} is no UTF-8 text") from None
    except TableInvalid as error:
        raise TableInvalid(f"{path}: {error}") from None


def parse_models(text: str) -> JudgeModels:
    """Return the table of a YAML text; raises TableInvalid."""
    try:
        raw = yaml.load(text, Loader=_Loader)  # the safe loader, in C
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TableInvalid(f"it is no YAML: {' '.join(str(error).split())[:300]}") from None
    try:
        table = _Table.model_validate(raw)
    except ValidationError as error:
        raise TableInvalid(_explain(error)) from None
    return {model.name: model for model in table.models}


def _explain(error: ValidationError) -> str:
    """Return the first fault as a sentence; the values that a file holds may be keys and are not quoted."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    path = ""
    for part in faults[0]["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{path.lstrip('.') or 'the table'}: {faults[0]['msg'].removeprefix('Value error, ')}{more}"
