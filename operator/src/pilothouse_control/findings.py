"""What validation says: one sentence about one field, and where in a file that field stands."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["Error", "Warning"]
FieldPath = tuple[str | int, ...]


def spell(path: FieldPath) -> str:
    """Return a path as people write it: `spec.steps[2].routes.billing`, odd keys in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (Error) or unwise (Warning) with one field of one object."""

    severity: Severity
    check: str
    kind: str
    name: str
    path: FieldPath
    what: str
    hint: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    @property
    def field(self) -> str:
        """The field, as people write it; empty for the object as a whole."""
        return spell(self.path)

    @property
    def is_error(self) -> bool:
        """Whether it refuses the object."""
        return self.severity == "Error"

    @property
    def sentence(self) -> str:
        """What and what to do, led by the field: for conditions and messages."""
        body = f"{self.what}; {self.hint}" if self.hint else self.what
        return f"{self.field}: {body}" if self.path else body
