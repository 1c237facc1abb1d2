"""What the values of engine and runner are made of."""

from typing import dataclass_transform

from msgspec import Struct, field


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True):
    """A value: its fields are its constructor's arguments, nobody changes it, equal ones are the same.

    Types are the type checker's business: a constructor asks nothing. `msgspec.structs.replace` makes a changed copy.
    What changes while it is used is a plain `msgspec.Struct` (docs/adr/0025).
    """
