"""What every model of the API shares: configuration, schema markers, CEL rules.

A model's attribute docstring is the description of the CRD field (read from the source when CRDs are generated, since
reading it at import would cost every process). Defaults here are applied when a plan is
resolved, never by the API server: an object in Git comes back as it was written.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule of a schema node (`x-kubernetes-validations`).

    `rule` is judged with `self` bound to the node; `message` (or `message_expression`) is what a person reads;
    `field_path`, where given, points at the field to change. Transition rules name `oldSelf`.
    """

    rule: str
    message: str
    message_expression: str = ""
    field_path: str = ""
    reason: str = ""


class Model(BaseModel):
    """Base of all API values: camelCase on the wire, frozen, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,  # validators are built at first use: a person waits for the command line's start
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    def to_raw(self) -> dict[str, Any]:
        """Return the object as it is written on the wire: camelCase, JSON values, unset fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def read(cls, raw: object) -> Self:
        """Return the model of a JSON object; raises ValueError, pydantic's, for one that is not valid."""
        return cls.model_validate(raw)


class StatusModel(Model):
    """Base of what is reported: unknown fields are ignored, so that an older reader survives a newer writer."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class _Extend:
    """Marker that adds keys to the JSON schema of the annotated type, or replaces it."""

    extra: dict[str, Any] = field(default_factory=dict)
    replace: bool = False

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = {} if self.replace else dict(handler(core_schema))
        return {**schema, **self.extra}

    def __hash__(self) -> int:
        return id(self)


def list_map(*keys: str) -> _Extend:
    """Mark a list as a map by `keys` (server-side apply merges per entry; keys are unique)."""
    return _Extend({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


def list_set() -> _Extend:
    """Mark a list of scalars as a set (entries are unique)."""
    return _Extend({"x-kubernetes-list-type": "set"})


JsonObject = Annotated[
    dict[str, Any],
    _Extend(
        {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-map-type": "atomic",
        },
        replace=True,
    ),
]
"""A free-form JSON object, owned whole by one field manager."""

JsonValue = Annotated[Any, _Extend({"x-kubernetes-preserve-unknown-fields": True}, replace=True)]
"""Any JSON value."""

IntOrString = Annotated[int | str, _Extend({"x-kubernetes-int-or-string": True}, replace=True)]
"""A Kubernetes int-or-string."""
