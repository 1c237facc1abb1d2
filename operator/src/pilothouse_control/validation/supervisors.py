"""Checks of a supervisor."""

from collections.abc import Iterator

from pilothouse_control.validation.scene import Check, Problem, Scene, SupervisorSubject


def judge_on_error(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A fail-closed judge that no turn waits for."""
    judge = subject.supervisor.spec.judge
    if judge is not None and judge.on_error != "Ignore" and subject.supervisor.spec.enforcement != "Sync":
        what = f"onError: {judge.on_error} comes too late to hold a turn, since enforcement is Async"
        yield Problem(("spec", "judge", "onError"), what, "set enforcement: Sync, or onError: Ignore")


SUPERVISOR_CHECKS: tuple[Check[SupervisorSubject], ...] = (Check("OnErrorWithoutSync", "Warning", judge_on_error),)
