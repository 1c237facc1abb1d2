from typing import get_args

from pilothouse_api.v1alpha1.workflow import StepKind
from pilothouse_engine.steps.registry import EXECUTORS

OF_THE_LOOP = {"Agent", "Approval", "Delegate"}


def test_every_step_kind_has_an_executor_or_is_the_loops_own() -> None:
    assert set(EXECUTORS) == set(get_args(StepKind)) - OF_THE_LOOP
