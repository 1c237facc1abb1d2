"""Values that are made in every turn."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(kind: type[T]) -> type[T]:
    """Make a slotted dataclass that nobody changes: the type checker proves it, the interpreter does not ask again.

    `frozen=True` sets each field through `object.__setattr__`, which for the hundred or so fields of a turn's values
    took an eighth of the turn. Use it for what a turn makes; anything else is a frozen dataclass.
    """
    return dataclass(slots=True)(kind)
