"""Which tests a mutant has to pass, and how they are run, so that a whole run ends in reasonable time on two cores.

Collecting the tests takes longer than running most of them. So pytest collects once, in a session that stays open, and
each forked process runs the tests that it needs straight from there.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from mutmut.mutation.trampoline import get_mutant_under_test, set_mutant_under_test
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

SECONDS_EACH = 3.0
"""Processor time of the tests of one mutant, by what they took when nothing was changed. Those in the files of its
module are kept, and the fastest others."""


CHECKED = 60
"""So many tests show, before any mutant is judged, that tests fail when they should and pass when they should."""


class OpenSession:
    """A plugin that does some work instead of running the tests that were collected."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        FrugalRunner.session = session
        FrugalRunner.items = {item.nodeid: item for item in session.items}
        with change_cwd(".."):
            self._work()
        return True


class FrugalRunner(PytestRunner):
    """mutmut's runner of pytest, with the tests of the open session."""

    session: pytest.Session
    items: Mapping[str, pytest.Item] = {}
    broken: ClassVar[list[str]] = []
    """Tests that fail with nothing changed: they judge no mutant."""

    def run_stats(self, *, tests: Iterable[str]) -> int:
        """Note which tests reach which function, and the processor time of each: the wall's is that of the machine."""
        seen, reached = state(), state().tests_by_mangled_function_name
        for name in self.items:
            began = time.process_time()
            if self._run([name]):
                self.broken.append(name)
                seen._stats.clear()
                continue
            seen.duration_by_test[name] = time.process_time() - began
            for function in seen._stats:
                reached[function].add(name)
            seen._stats.clear()
        for function, names in reached.items():
            reached[function] = set(affordable(names, own_files(function), seen.duration_by_test))
        return 0

    def run_forced_fail(self) -> int:
        """See that a change can be noticed, and that the session is fit for the next tests when one has failed."""
        code = self._run(spread(list(self.items))[:CHECKED])
        set_mutant_under_test("")
        if self._run([name for name in spread(list(self.items))[:CHECKED] if name not in self.broken]):
            raise SystemExit("tests fail with nothing changed, after others have failed in the same session")
        return code

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        if not get_mutant_under_test():
            return 0  # the tests have just passed with nothing changed
        own = own_files(mutant_name) if mutant_name else ""
        return self._run(sorted(spread(list(tests)), key=lambda test: own not in test))

    def _run(self, names: Sequence[str]) -> int:
        with change_cwd("mutants"):
            for name in names:
                item = self.items[name]
                # With no next item all is torn down, so that any other test may follow, also after a failure.
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
                if self.session.testsfailed:
                    self.session.testsfailed = 0
                    return 1
        return 0


def run_in_session(arguments: Sequence[str], work: Callable[[], None]) -> list[str]:
    """Collect the tests, and do the work with mutmut's runner replaced; return the tests that fail by themselves."""
    isolation.PytestRunner = FrugalRunner  # type: ignore[misc]
    # Nobody reads why a mutant fails: neither rewritten asserts nor long tracebacks are needed.
    quiet = ["-q", "-s", "--no-summary", "--tb=native", "--assert=plain", "--rootdir=."]
    with change_cwd("mutants"):
        code: Any = pytest.main([*quiet, *arguments], plugins=[OpenSession(work)])
    if code != 0:
        raise SystemExit(int(code))
    return FrugalRunner.broken


def own_files(function: str) -> str:
    """Return how the paths of a module's own tests go on behind their folder."""
    return f"/test_{function.split('.')[1]}"


def affordable(tests: Iterable[str], own: str, seconds: Mapping[str, float]) -> list[str]:
    """Return the tests that fit in the time of one mutant: a module's own ones first, then the fastest."""
    budget, kept = SECONDS_EACH, list[str]()
    for test in sorted(tests, key=lambda name: (own not in name, seconds[name], name)):
        budget -= seconds[test]
        if kept and budget < 0:
            break
        kept.append(test)
    return kept


def spread(tests: Sequence[str], stride: int = 20) -> list[str]:
    """Return the tests in an order that soon has met each of their files: most mutants fail in most of them."""
    return [test for start in range(stride) for test in sorted(tests)[start::stride]]
