"""Replay: what a supervisor would have done about a run that was observed before. Asks no judge, uses no tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_control.supervision.acting import choose
from pilothouse_control.supervision.bindings import Binding
from pilothouse_control.supervision.cadence import is_slot_due
from pilothouse_control.supervision.findings import judge_rules


@dataclass(frozen=True, slots=True)
class Deed:
    """One intervention: Pause, Steer or Abort, the rule that it is made for (`Rule/<name>`), and why."""

    action: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a supervisor does about one Observation.

    `asks_judge`: its judge would be asked, and nobody knows what it would say. `failed` are rules that could not be
    evaluated, and why. `is_over`: it has aborted the run before.
    """

    deeds: tuple[Deed, ...] = ()
    asks_judge: bool = False
    failed: tuple[tuple[str, str], ...] = ()
    is_over: bool = False

    def differs(self, other: "Replayed") -> bool:
        """Tell whether the other one does something else; its words may differ."""
        return _done(self) != _done(other)


def replay(spec: SupervisorSpec, observations: Iterable[Observation]) -> list[Replayed]:
    """Return the verdict of a supervisor's rules on each Observation of one run, in the order of time.

    Rules fire once in a visit, and the most severe word wins, as in a live run. What was observed is what happened:
    behind a Pause or a Steer that was not made then, the run may have gone another way.
    """
    binding = Binding(uid="", namespace="", name="", generation=0, spec=spec)
    verdicts: list[Replayed] = []
    visit, asked = 0, 0
    fired: tuple[str, ...] = ()
    for observation in observations:
        if verdicts and (verdicts[-1].is_over or _aborts(verdicts[-1])):
            verdicts.append(Replayed(is_over=True))
            continue
        if observation.visit != visit:
            visit, asked, fired = observation.visit, 0, ()
        rules = judge_rules(binding, observation, fired)
        fired = rules.fired
        is_due = spec.judge is not None and is_slot_due(spec.judge, observation.iteration, asked)
        asked = observation.iteration if is_due else asked
        findings = choose(rules.findings)
        if any(finding.action == "Abort" for finding in findings):
            findings = [finding for finding in findings if finding.action == "Abort"]
        deeds = tuple(Deed(finding.action, finding.source, finding.reason) for finding in findings)
        verdicts.append(Replayed(deeds, is_due, rules.failed))
    return verdicts


def _aborts(verdict: Replayed) -> bool:
    return any(deed.action == "Abort" for deed in verdict.deeds)


def _done(verdict: Replayed) -> Sequence[tuple[str, str]]:
    return [(deed.action, deed.source) for deed in verdict.deeds]
