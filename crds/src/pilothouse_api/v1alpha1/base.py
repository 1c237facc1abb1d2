"""What every model of the API shares: configuration, schema markers, CEL rules.

A model's attribute docstring is the description of the CRD field (read from the source when CRDs are generated, since
reading it at import would cost every process). Defaults here are applied when a plan is
resolved, never by the API server: an object in Git comes back as it was written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
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
        defer_build=True,  # validators are built at first use: import time is the waiting time of a run's start
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    def to_raw(self) -> dict[str, Any]:
        """Return the object as it is written on the wire: camelCase, JSON values, unset fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def from_checked(cls, raw: Mapping[str, Any]) -> Self:
        """Return what `model_validate` gives of an object that has passed it before, as it was written by `to_raw`.

        Builds no validator, which for a plan takes a hundred times as long as reading it does. Raises ValueError for a
        field that is not known, is missing or is no object where one is needed: another version has written it.
        """
        if not isinstance(raw, Mapping):
            raise ValueError(f"{cls.__name__} is no object")
        fields = _readers(cls)
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in fields:
                raise ValueError(f"{cls.__name__} has no field {key!r:.80}")
            name, read = fields[key]
            values[name] = value if read is None or value is None else read(value)
        given = set(values)
        for name, info in cls.model_fields.items():
            if name not in given:
                values[name] = _default(cls, name, info)
        return super().model_construct(given, **values)


class StatusModel(Model):
    """Base of what is reported: unknown fields are ignored, so that an older reader survives a newer writer."""

    model_config = ConfigDict(extra="ignore")


_Read = Callable[[Any], Any]


@cache
def _readers(model: type[Model]) -> dict[str, tuple[str, _Read | None]]:
    """Return by the name on the wire a field and what makes its value of what JSON gives, None where it is that."""
    return {info.alias or name: (name, _reader(info.annotation)) for name, info in model.model_fields.items()}


def _default(model: type[Model], name: str, info: FieldInfo) -> Any:
    if info.is_required():
        raise ValueError(f"{model.__name__} lacks the field {info.alias or name}")
    factory = info.default_factory
    if isinstance(factory, type) and issubclass(factory, Model):
        return factory.from_checked({})
    return info.get_default(call_default_factory=True, validated_data={})


def _reader(annotation: Any) -> _Read | None:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation.from_checked
    if annotation is float:
        return float
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _reader(arguments[0])
    if origin in (Union, UnionType):
        readers = [read for argument in arguments if (read := _reader(argument)) is not None]
        if len(readers) > 1:
            raise TypeError(f"nothing in JSON tells the members of {annotation} apart")
        return readers[0] if readers else None
    read = _reader(arguments[-1]) if origin in (list, dict) else None
    if read is None:
        return None
    return _list_reader(read) if origin is list else _map_reader(read)


def _list_reader(read: _Read) -> _Read:
    return lambda items: [read(item) for item in items]


def _map_reader(read: _Read) -> _Read:
    return lambda items: {key: read(item) for key, item in items.items()}


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
