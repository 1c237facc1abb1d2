"""Which tests a mutant has to pass, so that a whole run ends in reasonable time on two cores."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from mutmut.mutation.trampoline import get_mutant_under_test
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.workers import isolation

PROBES = 20
"""So many tests are run first where many reach a function: collecting hundreds takes longer than running a few, and
most mutants fail nearly every test."""

SECONDS_EACH = 4.0
"""Processor time of the tests of one mutant, by what they took when nothing was changed; the fastest ones are kept."""


class Stopwatch:
    """A plugin that notes the processor time of each test: the wall's says more about what else is running."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        began = time.process_time()
        yield
        self.seconds[item.nodeid] = time.process_time() - began


class FrugalRunner(PytestRunner):
    """mutmut's runner of pytest: probes first, then what fits in the time of one mutant."""

    def run_stats(self, *, tests: Iterable[str]) -> int:
        stopwatch = Stopwatch()
        self._plugins = [stopwatch]
        code = super().run_stats(tests=tests)
        self._plugins = []
        state().duration_by_test.update(stopwatch.seconds)
        reached = state().tests_by_mangled_function_name
        for function, names in reached.items():
            reached[function] = set(affordable(names, state().duration_by_test, SECONDS_EACH))
        return code

    def execute_pytest(self, params: list[str], **given: Any) -> int:
        plugins = [*given.pop("plugins", ()), *getattr(self, "_plugins", ())]
        return super().execute_pytest(params, plugins=plugins, **given)

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        if not get_mutant_under_test():
            return 0  # the tests have just passed with nothing changed, when it was noted which reaches what
        first, rest = probes(sorted(tests))
        if not first:
            return super().run_tests(mutant_name=mutant_name, tests=rest)
        return super().run_tests(mutant_name=mutant_name, tests=first) or super().run_tests(
            mutant_name=mutant_name, tests=rest
        )


def install() -> None:
    """Make mutmut use the runner."""
    isolation.PytestRunner = FrugalRunner  # type: ignore[misc]


def affordable(tests: Iterable[str], seconds: Mapping[str, float], budget: float) -> list[str]:
    """Return the fastest tests that fit in a budget together, at least one."""
    kept: list[str] = []
    for test in sorted(tests, key=lambda name: (seconds[name], name)):
        budget -= seconds[test]
        if kept and budget < 0:
            break
        kept.append(test)
    return kept


def probes(tests: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a few tests of many, of as many files as possible, and the others."""
    step = len(tests) // PROBES
    if step < 2:
        return [], list(tests)
    return list(tests[::step]), [test for place, test in enumerate(tests) if place % step]
