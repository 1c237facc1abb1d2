#!/usr/bin/env python3
"""`make mutate`: change the engine's decisions one at a time and see whether a test notices (README.md beside this).

Works in a copy (`build/mutation`), so nothing in the tree is touched. Exits with 1 when a module's score is under the
floor or when a change survived that the list of survivors does not explain.
"""

import argparse
import os
import resource
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from survivors import LISTED, Survivor, changed_line, compare, read_listed, write_found

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutation"
PACKAGE = "pilothouse_engine"
FLOOR_PERCENT = 85.0
MEMORY_BYTES = 4 << 30
"""A mutant that never ends must not take the machine's memory with it."""

UNDECIDED = (0, 33, None)
"""Exit codes of mutants that are tried again: survived, reached by no test, not tried (their function has changed)."""

MODULES = ("account", "outcome", "context", "state", "decide", "batch", "driver")

CONFIGURATION = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = [{only}]
do_not_mutate_patterns = ['^\\s*assert ', '_log\\.', 'assert_never']
pytest_add_cli_args_test_selection = [{tests}]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-m", "not slow and not hypothesis"]
timeout_constant = 5.0
timeout_multiplier = 15.0
use_git_change_detection = false
on_dependency_change = "ignore"

[tool.pytest.ini_options]
pythonpath = ["tests"]
addopts = "-q --import-mode=importlib"
timeout = 10
markers = ["anyio: run in an event loop", "slow: seconds by itself"]
"""
"""What mutmut and pytest read in the copy. Asserts are there for the type checker, log texts and `assert_never` for
nobody's behaviour; a hanging test fails after 10 s, which kills its mutant."""

TESTS = "tests/unit/engine"
LEFT_OUT = ("guardrails/test_checks.py", "guardrails/test_*_detection.py")
"""Tests of what a text holds, which take long and reach none of the modules."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one module."""

    module: str
    mutants: int
    survived: int

    @property
    def percent(self) -> float:
        return 100.0 * (self.mutants - self.survived) / self.mutants if self.mutants else 100.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(MODULES), help="modules of the engine")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="keep what was killed, try the survivors again")
    options = parser.parse_args(argv)
    lay_out(options.modules, is_fresh=not options.again)
    os.chdir(WORK)
    broken = run(options.workers, is_again=options.again)
    rows, found = collect(options.modules)
    write_found(ROOT / "build" / "survivors.txt", found)
    print(table(rows))
    problems = [
        f"{row.module}: {row.percent:.1f} % killed, the floor is {FLOOR_PERCENT:.0f} %"
        for row in rows
        if row.percent < FLOOR_PERCENT
    ]
    problems += [f"{test} fails with nothing changed, so it judged no mutant" for test in broken]
    unexplained, killed = compare(read_listed(ROOT / LISTED), found, options.modules)
    problems += [f"survived and not explained: {one}" for one in unexplained]
    # Which of the slower tests fit in a mutant's time is not the same on every machine: this is no fault.
    print("".join(f"explained in {LISTED}, but killed here: {one}\n" for one in killed), end="")
    print("\n".join(problems) or "the survivors are those that tests/mutation/survivors.toml explains")
    return 1 if problems else 0


def lay_out(modules: Iterable[str], *, is_fresh: bool) -> None:
    """Copy what the tests of the engine need into a folder of the shape that mutmut knows."""
    if is_fresh and WORK.exists():
        shutil.rmtree(WORK)
    WORK.mkdir(parents=True, exist_ok=True)
    for name, source in {"src/" + PACKAGE: f"runners/src/{PACKAGE}", "tests/unit/engine": "tests/unit/engine"}.items():
        shutil.copytree(ROOT / source, WORK / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "support", WORK / "tests" / "support", dirs_exist_ok=True)
    shutil.copy2(ROOT / "tests" / "conftest.py", WORK / "tests")
    only = ", ".join(f'"src/{PACKAGE}/{module}.py"' for module in modules)
    left_out = {path for pattern in LEFT_OUT for path in (ROOT / TESTS).glob(pattern)}
    files = sorted(set((ROOT / TESTS).rglob("test_*.py")) - left_out)
    tests = ", ".join(f'"{path.relative_to(ROOT)}"' for path in files)
    (WORK / "pyproject.toml").write_text(CONFIGURATION.format(only=only, tests=tests))


def run(workers: int, *, is_again: bool) -> list[str]:
    """Make the mutants and run, for each, tests that reach its function; mutmut forks a process for each.

    Returns the tests that fail with nothing changed.
    """
    import mutmut.__main__ as mutmut
    from frugality import run_in_session
    from mutmut.configuration import config
    from operators import narrow

    narrow()
    os.environ["HYPOTHESIS_PROFILE"] = "mutate"
    mutmut.set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(workers)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    survivors = [name for _, name, code in results() if code in UNDECIDED] if is_again else []
    settings = config()
    arguments = [*settings.pytest_add_cli_args, *settings.pytest_add_cli_args_test_selection]
    return run_in_session(arguments, lambda: mutmut._run(survivors, workers))


def results() -> list[tuple[str, str, int | None]]:
    """Return module, mutant and exit code of its tests, as they stand in the working folder."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.utils.file_utils import walk_mutatable_files

    found: list[tuple[str, str, int | None]] = []
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        found += [(path.stem, name, code) for name, code in data.exit_code_by_key.items()]
    return found


def collect(modules: Iterable[str]) -> tuple[list[Row], list[Survivor]]:
    """Return the table and the survivors. A mutant that hangs or breaks the test process is killed."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    everything = results()
    lived = [
        (module, name)
        for module, name, code in everything
        if status_by_exit_code[code] in ("survived", "no tests", "not checked", "suspicious")
    ]
    rows = [
        Row(module, sum(m == module for m, _, _ in everything), sum(m == module for m, _ in lived))
        for module in modules
    ]
    return rows, [changed_line(module, name, get_diff_for_mutant(name)) for module, name in lived]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, with their sum."""
    total = Row("all", sum(row.mutants for row in rows), sum(row.survived for row in rows))
    lines = [f"{'module':<16}{'mutants':>9}{'killed':>9}{'survived':>10}{'percent':>9}"]
    lines += [
        f"{row.module:<16}{row.mutants:>9}{row.mutants - row.survived:>9}{row.survived:>10}{row.percent:>9.1f}"
        for row in (*rows, total)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
