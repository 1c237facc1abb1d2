"""What a supervisor found in one look: the rules that fire now and have not fired in this visit yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_control.supervision.bindings import Binding
from pilothouse_control.supervision.digested import digest_spec
from pilothouse_control.supervision.observing import idle_since
from pilothouse_control.supervision.rules.expression import RuleFailed
from pilothouse_control.supervision.rules.registry import evaluate

JUDGE, JUDGE_ERROR = "Judge", "JudgeError"
_FAILED = "failed-"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that one supervisor wants done: Pause, Steer or Abort, by whom and why. `rule` None: its judge."""

    binding: Binding
    action: str
    source: str
    reason: str
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class RuleFindings:
    """What the rules of one supervisor say: `fired` as it is to be recorded; `failed` are names and reasons."""

    findings: tuple[Finding, ...]
    fired: tuple[str, ...]
    failed: tuple[tuple[str, str], ...] = ()


def judge_rules(binding: Binding, observation: Observation, fired: Iterable[str]) -> RuleFindings:
    """Return what fires now; a rule fires once in a visit, and that it failed is told once in a visit."""
    marks = list(fired)
    findings: list[Finding] = []
    failed: list[tuple[str, str]] = []
    for mark, rule in digest_spec(binding.spec).rules:
        if mark in marks:
            continue
        try:
            verdict = evaluate(rule, observation)
        except RuleFailed as error:
            if f"{_FAILED}{mark}" not in marks:
                marks.append(f"{_FAILED}{mark}")
                failed.append((rule.name, str(error)))
            continue
        if verdict is not None:
            marks.append(mark)
            action = rule.then or binding.spec.on_violation
            findings.append(Finding(binding, action, f"Rule/{rule.name}", verdict.reason, rule.name))
    return RuleFindings(tuple(findings), tuple(marks), tuple(failed))


def kept_marks(binding: Binding, fired: Sequence[str], most: int) -> list[str]:
    """Return what is recorded of marks, in their order.

    Those of rules that are in force always are, or one would fire twice in a visit: they have two marks each at most,
    and a supervisor has 32 rules. Of rules that it had earlier in the visit the newest are, those that fired first.
    """
    if len(fired) <= most:
        return list(fired)
    rules = {mark for mark, _ in digest_spec(binding.spec).rules}

    def weight(place: int) -> tuple[bool, bool, int]:
        mark = fired[place]
        return mark.removeprefix(_FAILED) in rules, not mark.startswith(_FAILED), place

    return [fired[place] for place in sorted(sorted(range(len(fired)), key=weight)[-most:])]


def next_rule_time(binding: Binding, snapshot: Snapshot, fired: Iterable[str]) -> datetime | None:
    """Return when a rule about time fires if nothing happens until then; None where none would."""
    since, marks = idle_since(snapshot), set(fired)
    if since is None:
        return None
    waits = [
        rule.no_progress_for.seconds
        for mark, rule in digest_spec(binding.spec).rules
        if rule.no_progress_for is not None and mark not in marks
    ]
    return since + timedelta(seconds=min(waits)) if waits else None
