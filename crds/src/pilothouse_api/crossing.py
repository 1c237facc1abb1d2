"""What a model becomes where it crosses into the runner: the bases of `structs`."""

from typing import Any, Self, dataclass_transform

import msgspec
from msgspec import Struct, field


def always(*, default: Any, name: str | None = None) -> Any:
    """Return the field of a Struct whose default is written to the wire too: what stands behind a function is."""
    return field(default_factory=default.copy if isinstance(default, list | dict) else lambda: default, name=name)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, always))
class _Crossing(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A value that is read from JSON and written to it; `msgspec.structs.replace` makes a changed copy."""

    @classmethod
    def read(cls, raw: object) -> Self:
        """Return the value of a JSON object; raises ValueError that names the place where it is something else."""
        try:
            return msgspec.convert(raw, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ValueError(f"this is no {cls.__name__}: {error}") from None

    def to_raw(self) -> dict[str, Any]:
        """Return the object as it is written on the wire: camelCase, JSON values, without what is None."""
        raw: dict[str, Any] = msgspec.to_builtins(self)
        return raw


class Written(_Crossing, forbid_unknown_fields=True):
    """What people write, and what is made of it: judged before it comes here, so that only types are looked at.

    A field that has its default is not written to the wire, where that is not made anew for each value.
    """


class Reported(_Crossing):
    """What programs report: unknown fields are ignored, so that an older reader survives a newer writer.

    Its defaults are written to the wire, but for None: who reads a report sees a 0 where nothing was counted.
    """
