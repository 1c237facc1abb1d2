"""Supervision: who watches a run, what they see of it, and what is done about it (supervision.md). Pure.

Whoever hosts runs (the operator, `pilothouse run`) gathers a `SupervisionView`, asks `plan_supervision`, and does what
the `SupervisionPlan` says; nothing here reads, writes or waits.
"""

from pilothouse_control.supervision.acting import identity_of
from pilothouse_control.supervision.bindings import Binding, Bindings, find_bound
from pilothouse_control.supervision.observing import observe
from pilothouse_control.supervision.planning import plan_supervision
from pilothouse_control.supervision.values import (
    Directive,
    JudgeAsk,
    JudgeAvailability,
    JudgeAvailable,
    JudgeFailed,
    JudgeUnavailable,
    LogLine,
    NewVerdict,
    SupervisionPlan,
    SupervisionView,
)

__all__ = [
    "Binding",
    "Bindings",
    "Directive",
    "JudgeAsk",
    "JudgeAvailability",
    "JudgeAvailable",
    "JudgeFailed",
    "JudgeUnavailable",
    "LogLine",
    "NewVerdict",
    "SupervisionPlan",
    "SupervisionView",
    "find_bound",
    "identity_of",
    "observe",
    "plan_supervision",
]
