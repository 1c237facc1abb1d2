"""Walks over models of the API: which models and fields stand where, in classes and in values."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from pilothouse_control.findings import FieldPath

RawNode = tuple[FieldPath, type[BaseModel], Any]
Container = Literal["One", "List", "Map"]


@dataclass(frozen=True, slots=True)
class FieldShape:
    """One field of a model: its name on the wire, the model that it holds, and how many of it."""

    wire: str
    attribute: str
    model: type[BaseModel] | None
    container: Container
    list_keys: tuple[str, ...]
    is_set: bool


@lru_cache(maxsize=512)
def fields_of(model: type[BaseModel]) -> Mapping[str, FieldShape]:
    """Return the fields of a model by their name on the wire."""
    return {
        shape.wire: shape
        for name, info in model.model_fields.items()
        for shape in (_shape(info.alias or name, name, info.annotation, tuple(info.metadata)),)
    }


def _shape(wire: str, attribute: str, annotation: Any, metadata: tuple[Any, ...]) -> FieldShape:
    container: Container = "One"
    model: type[BaseModel] | None = None
    extras: dict[str, Any] = {}
    pending = [annotation]
    for mark in metadata:
        extras.update(getattr(mark, "extra", {}) or {})
    while pending:
        current = pending.pop()
        origin = get_origin(current)
        if origin is Annotated:
            inner, *marks = get_args(current)
            for mark in marks if container == "One" else ():
                extras.update(getattr(mark, "extra", {}) or {})
            pending.append(inner)
        elif origin in (Union, types.UnionType):
            pending.extend(get_args(current))
        elif origin is list:
            container = "List"
            pending.extend(get_args(current))
        elif origin is dict:
            container = "Map"
            pending.append(get_args(current)[1])
        elif isinstance(current, type) and issubclass(current, BaseModel):
            model = current
    keys = tuple(extras.get("x-kubernetes-list-map-keys", ()))
    return FieldShape(wire, attribute, model, container, keys, extras.get("x-kubernetes-list-type") == "set")


def walk_raw(model: type[BaseModel], raw: Any, path: FieldPath = ()) -> Iterator[RawNode]:
    """Yield every place of a raw value where a model belongs: its path, the model, and what stands there."""
    yield path, model, raw
    if not isinstance(raw, dict):
        return
    for wire, shape in fields_of(model).items():
        if shape.model is None or raw.get(wire) is None:
            continue
        for step, child in _children(shape.container, raw[wire]):
            yield from walk_raw(shape.model, child, (*path, wire, *step))


def _children(container: Container, value: Any) -> Iterator[tuple[FieldPath, Any]]:
    if container == "One":
        yield (), value
    elif container == "List" and isinstance(value, list):
        yield from (((index,), item) for index, item in enumerate(value))
    elif container == "Map" and isinstance(value, dict):
        yield from (((key,), item) for key, item in value.items())


def walk(value: BaseModel, path: FieldPath = ()) -> Iterator[tuple[FieldPath, BaseModel]]:
    """Yield every model in a value, the value itself first, each with its path; only what was set."""
    yield path, value
    for wire, shape in fields_of(type(value)).items():
        if shape.model is None or shape.attribute not in value.model_fields_set:
            continue
        child = getattr(value, shape.attribute)
        children = child.items() if isinstance(child, dict) else enumerate(child) if isinstance(child, list) else None
        if isinstance(child, BaseModel):
            yield from walk(child, (*path, wire))
        for key, item in children or ():
            if isinstance(item, BaseModel):
                yield from walk(item, (*path, wire, key))


def without_nulls(model: type[BaseModel], raw: Any) -> Any:
    """Return a raw value without the fields that are null, as the API server prunes them; free JSON is kept whole."""
    if not isinstance(raw, dict):
        return raw
    fields = fields_of(model)
    return {
        key: _without_nulls(fields[key], value) if key in fields else value
        for key, value in raw.items()
        if value is not None or key not in fields
    }


def _without_nulls(shape: FieldShape, value: Any) -> Any:
    if shape.model is None:
        return value
    if shape.container == "List" and isinstance(value, list):
        return [without_nulls(shape.model, item) for item in value]
    if shape.container == "Map" and isinstance(value, dict):
        return {key: without_nulls(shape.model, item) for key, item in value.items()}
    return without_nulls(shape.model, value)
