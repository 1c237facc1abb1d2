"""Plans as the operator keeps them: what its decisions need, and what is alike once."""

from typing import Any

from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1.agentrun import PlanReport
from pilothouse_operator.workloads.manifests import build_pod
from pilothouse_operator.workloads.plans import lighten


def a_plan(name: str, **fields: Any) -> Plan:
    agent = {"mode": "Completion", "model": {"name": "m"}, "prompt": {"inline": "Say it."}}
    raw = {
        "run": {"namespace": "ns", "name": name, "uid": f"u-{name}"},
        "workflow": {"name": "flow", "digest": "d"},
        "spec": {"steps": [{"id": "say", "kind": "Agent", "agentRef": {"name": "worker"}}]},
        "agents": {"worker": {"origin": {"name": "worker", "digest": "d"}, "spec": agent}},
        "texts": {"inline": {"text": "x" * 1000, "digest": "d", "resolved": "configmap:a/b"}},
        "input": {"word": name},
        "pod": {"image": "runner"},
    }
    return Plan.model_validate({**raw, **fields})


def test_a_plan_is_kept_without_what_only_its_runner_needs() -> None:
    plan = a_plan("r1")
    kept = lighten(plan, None)
    assert (kept.texts, kept.input) == ({}, {})
    assert kept == plan.model_copy(update={"texts": {}, "input": {}})
    report = PlanReport(name="r1-plan", digest="d")
    assert build_pod(kept, report, 1) == build_pod(plan, report, 1)


def test_plans_of_one_workflow_share_what_is_the_same_in_them() -> None:
    first = lighten(a_plan("r1"), None)
    second = lighten(a_plan("r2"), first)
    assert second.spec is first.spec
    assert second.agents is first.agents
    assert second.run.name == "r2"


def test_a_plan_of_a_changed_workflow_keeps_what_has_changed() -> None:
    first = lighten(a_plan("r1"), None)
    changed = a_plan("r2", pod={"image": "other"}, workflow={"name": "flow", "digest": "e"})
    second = lighten(changed, first)
    assert (second.pod, second.workflow.digest) == ({"image": "other"}, "e")
    assert second.spec is first.spec
