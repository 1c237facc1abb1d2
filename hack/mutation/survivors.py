"""The list of survivors that are explained, and its comparison with what was found."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LISTED = "tests/mutation/survivors.toml"
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, order=True)
class Survivor:
    """A change that no test noticed, named by what it changes and not by a number that moves with every edit."""

    where: str
    was: str
    now: str

    @property
    def module(self) -> str:
        return self.where.split(".")[0]

    def __str__(self) -> str:
        return f"{self.where}: {self.was} => {self.now}"


def changed_line(module: str, mutant: str, diff: str) -> Survivor:
    """Return the survivor that a diff of mutmut's shows."""
    function = mutant.rpartition(".")[2].rpartition("__mutmut_")[0]
    where = module + "." + function.removeprefix("x_").replace("xǁ", "").replace("ǁ", ".")
    lines = diff.splitlines()
    gone = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
    new = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    return Survivor(where, _one_line(gone), _one_line(new))


def _one_line(lines: Iterable[str]) -> str:
    return _SPACE.sub(" ", " ".join(lines)).strip()


def read_listed(path: Path) -> list[Survivor]:
    """Return the survivors that a file explains, in groups of a `why` and the `changes` it holds for."""
    if not path.exists():
        return []
    listed: list[Survivor] = []
    for group in tomllib.loads(path.read_text())["group"]:
        if not group["why"].strip():
            raise ValueError(f"{path}: a group without a reason")
        for change in group["changes"]:
            where, _, rest = change.partition(": ")
            was, _, now = rest.partition(" => ")
            listed.append(Survivor(where, was, now))
    return listed


def compare(
    listed: Sequence[Survivor], found: Sequence[Survivor], modules: Iterable[str]
) -> tuple[list[Survivor], list[Survivor]]:
    """Return what survived without being listed, and what is listed and did not survive, for the modules that ran."""
    ran = set(modules)
    wanted = Counter(one for one in listed if one.module in ran)
    got = Counter(found)
    return sorted((got - wanted).elements()), sorted((wanted - got).elements())


def write_found(path: Path, found: Sequence[Survivor]) -> None:
    """Keep what was found, one a line, in the form that the list takes."""
    path.write_text("".join(f"{one}\n" for one in sorted(found)))
