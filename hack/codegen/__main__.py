"""Command line: `hack/generate` writes, `hack/generate --check` compares."""

import argparse
import difflib
import sys
from pathlib import Path

from codegen.descriptions import UndescribedError
from codegen.outputs import FaultyError, leftovers, outputs
from codegen.schema import UnstructuralError
from codegen.sentences import TableError
from codegen.structs import UnspeakableError

ROOT = Path(__file__).resolve().parents[2]
SHOWN_LINES = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="hack/generate",
        description="Writes CRDs and policies, the chart's copies of them, the runner's Structs, and docs/spec.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not as it would be")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: the one of this script)")
    chosen = parser.parse_args(arguments)
    try:
        return check(chosen.root) if chosen.check else write(chosen.root)
    except (FaultyError, TableError, UndescribedError, UnspeakableError, UnstructuralError) as error:
        print(f"hack/generate: {error}", file=sys.stderr)
        return 2


def write(root: Path) -> int:
    made = outputs(root)
    for path, text in made.items():
        target = root / path
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            print(f"wrote {path}")
    for path in leftovers(root, made):
        (root / path).unlink()
        print(f"removed {path}")
    return 0


def check(root: Path) -> int:
    made = outputs(root)
    differing = 0
    for path, want in made.items():
        target = root / path
        is_there = target.exists()
        got = target.read_text() if is_there else ""
        if got != want or not is_there:
            differing += 1
            print(f"{path} differs from what the models say:" if is_there else f"{path} is missing")
            difference = difflib.unified_diff(
                got.splitlines(), want.splitlines(), "committed", "generated", lineterm="", n=1
            )
            for line, _ in zip(difference, range(SHOWN_LINES), strict=False):
                print(f"    {line}")
    stale = leftovers(root, made)
    for path in stale:
        print(f"{path} is made by nothing any more")
    if differing or stale:
        print("run `make generate`, look at the difference, and commit it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
