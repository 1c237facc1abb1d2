"""Every validation of the admission policies, on a real API server with real tokens: one call that passes, one that
is refused with words that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.crds.contract_world import OPERATOR, OPERATOR_NAMESPACE, World
from integration.crds.kube_callers import Answer, Caller, must

POLICIES = Path(__file__).resolve().parents[3] / "crds" / "policies"

CALL = "t3-0-9f2c11ab"
PENDING = {"attempt": 1, "pendingApprovals": [{"callId": CALL, "tool": "refund"}]}
FINISHED = {"type": "Finished", "status": "True", "reason": "Complete", "message": "The run ended."}


@dataclass(frozen=True)
class Cast:
    """Who calls in these tests; runs are `world`'s."""

    world: World
    runner: Caller
    """A runner in pod `own-1`."""
    stranger: Caller
    """A runner in another pod."""
    unbound: Caller
    """Somebody with a runner's ServiceAccount but no pod."""
    program: Caller
    """A program in a pod, with a ServiceAccount that is no runner's."""
    operator: Caller
    """The operator, in its pod."""
    alice: Caller
    """May write runs."""
    bob: Caller
    """May write runs, approve, and change limits."""

    def live_run(self, **spec: Any) -> str:
        status = {"attempt": 1, "phase": "Running", "pod": {"name": "own-1"}, "run": PENDING}
        return self.world.run(status, **spec)

    def report(self, caller: Caller, run: str, status: dict[str, Any]) -> Answer:
        return caller.patch(self.world.namespace, "AgentRun", run, {"status": status}, status=True)

    def patch(self, caller: Caller, run: str, spec: dict[str, Any]) -> Answer:
        return caller.patch(self.world.namespace, "AgentRun", run, {"spec": spec})


@pytest.fixture(scope="module")
def cast(world: World) -> Cast:
    return Cast(
        world,
        runner=world.holder("prun", pod="own-1"),
        stranger=world.holder("prun-triage", pod="other-1"),
        unbound=world.holder("prun"),
        program=world.holder("app", pod="app"),
        operator=world.holder(OPERATOR, pod=world.name("operator"), namespace=OPERATOR_NAMESPACE),
        alice=world.user("alice"),
        bob=world.user("bob"),
    )


@dataclass(frozen=True)
class PolicyCase:
    policy: str
    message: str
    """The validation's `message`, from its beginning."""
    passes: Callable[[Cast], Answer]
    refused: Callable[[Cast], Answer]
    want: str
    """What the caller reads."""
    want_status: int = 403


def _workflow_status(cast: Cast, caller: Caller) -> Answer:
    name = cast.world.name("workflow")
    spec = {"steps": [{"id": "a", "kind": "Response", "response": {"mapping": {"a": "b"}}}]}
    raw = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "Workflow", "metadata": {"name": name}, "spec": spec}
    must(cast.world.admin.create(cast.world.namespace, raw))
    return caller.patch(cast.world.namespace, "Workflow", name, {"status": {"activeRuns": 3}}, status=True)


def _decide(cast: Cast, caller: Caller, call: str = CALL, **decision: Any) -> Answer:
    return cast.patch(caller, cast.live_run(), {"control": {"approvals": {call: {"decision": "Approve", **decision}}}})


def _steer(cast: Cast, caller: Caller, id: str = "a1", **message: Any) -> Answer:
    return cast.patch(caller, cast.live_run(), {"control": {"steer": {id: {"message": "x", **message}}}})


def _change_edit(cast: Cast, edit: dict[str, Any]) -> Answer:
    run = cast.live_run()
    decision = {"decision": "Approve", "arguments": {"amount": 5}}
    must(cast.patch(cast.bob, run, {"control": {"approvals": {CALL: decision}}}))
    return cast.patch(cast.bob, run, {"control": edit})


def _after_end(cast: Cast, caller: Caller, body: dict[str, Any]) -> Answer:
    run = cast.world.run({"conditions": [{**FINISHED, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    return caller.patch(cast.world.namespace, "AgentRun", run, body)


def _create_child(cast: Cast, caller: Caller, *, owner: bool) -> Answer:
    parent = cast.world.run()
    uid = cast.world.read(parent)["metadata"]["uid"]
    reference = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "name": parent, "uid": uid}
    metadata = {"ownerReferences": [reference]} if owner else {"labels": {"pilothouse.dev/parent": parent}}
    raw_run = {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": cast.world.name("child"), **metadata},
        "spec": {"agentRef": {"name": "a"}},
    }
    return caller.create(cast.world.namespace, raw_run)


def _create_pod(cast: Cast, caller: Caller, **labels: str) -> Answer:
    raw_pod = {
        "metadata": {"name": cast.world.name("pod"), "labels": labels},
        "spec": {"serviceAccountName": "prun", "containers": [{"name": "main", "image": "none"}]},
    }
    return caller.call("POST", f"/api/v1/namespaces/{cast.world.namespace}/pods", raw_pod)


MANAGED = {"app.kubernetes.io/managed-by": "pilothouse"}
RUN_A = {"input": {"a": 1}, "overrides": {"resources": {"requests": {"cpu": 1}}}}

CASES = (
    PolicyCase(
        "pilothouse-runner-wall",
        "a program in a pod may not change a run",
        passes=lambda c: c.patch(c.operator, c.live_run(), {"control": {"mode": "Pause"}}),
        refused=lambda c: c.patch(c.program, c.live_run(), {"control": {"mode": "Pause"}}),
        want="app acts from inside a pod and may not change a run: use the operator API, or let an administrator add",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-runner-wall",
        "the status of workflows, agents and supervisors is written by the operator alone",
        passes=lambda c: _workflow_status(c, c.operator),
        refused=lambda c: _workflow_status(c, c.program),
        want="the status of workflows, agents and supervisors is written by the operator alone",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-runner-wall",
        "a runner reports only on its own run",
        passes=lambda c: c.report(c.runner, c.live_run(), {"run": {"attempt": 1, "turn": 4}}),
        refused=lambda c: c.report(c.stranger, c.live_run(), {"run": {"attempt": 1, "turn": 4}}),
        want="status.pod.name is its own pod: this token belongs to pod other-1, the pod of this run is own-1",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-runner-wall",
        "a runner writes status.run and nothing else",
        passes=lambda c: c.report(c.operator, c.live_run(), {"phase": "Succeeded"}),
        refused=lambda c: c.report(c.runner, c.live_run(), {"phase": "Succeeded"}),
        want="a runner writes status.run and nothing else: status.phase belongs to the operator",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-runner-accounts",
        "a runner's ServiceAccount (its name begins with prun) writes nothing",
        passes=lambda c: c.report(c.runner, c.live_run(), {"run": {"attempt": 1}}),
        refused=lambda c: c.unbound.delete(c.world.namespace, "AgentRun", c.live_run()),
        want="writes nothing of pilothouse.dev but status.run of its own run: use another ServiceAccount",
    ),
    PolicyCase(
        "pilothouse-runner-accounts",
        "this token of a runner's ServiceAccount is not bound to a pod",
        passes=lambda c: c.report(c.runner, c.live_run(), {"run": {"attempt": 1}}),
        refused=lambda c: c.report(c.unbound, c.live_run(), {"run": {"attempt": 1}}),
        want="is not bound to a pod, so no run is its own: use the token that is projected into the runner's pod",
    ),
    PolicyCase(
        "pilothouse-control-rights",
        "changing spec.control.approvals needs the verb approve",
        passes=lambda c: _decide(c, c.bob),
        refused=lambda c: _decide(c, c.alice),
        want="alice may not approve: changing spec.control.approvals needs the verb approve on agentruns",
    ),
    PolicyCase(
        "pilothouse-control-rights",
        "changing spec.limits needs the verb limit",
        passes=lambda c: c.patch(c.bob, c.live_run(), {"limits": {"tokenBudget": 9}}),
        refused=lambda c: c.patch(c.alice, c.live_run(), {"limits": {"tokenBudget": 9}}),
        want="alice may not change limits: changing spec.limits needs the verb limit on agentruns",
    ),
    PolicyCase(
        "pilothouse-control-rights",
        "spec.control.by must be your own user name",
        passes=lambda c: c.patch(c.alice, c.live_run(), {"control": {"mode": "Pause", "by": "alice"}}),
        refused=lambda c: c.patch(c.alice, c.live_run(), {"control": {"mode": "Pause", "by": "bob"}}),
        want="spec.control.by must be your own user name, alice, or left out; it is bob",
    ),
    PolicyCase(
        "pilothouse-control-rights",
        "by of a steer message must be your own user name",
        passes=lambda c: _steer(c, c.alice, by="alice"),
        refused=lambda c: _steer(c, c.alice, by="bob"),
        want="by of a steer message must be your own user name, alice, or left out",
    ),
    PolicyCase(
        "pilothouse-control-rights",
        "by of an approval must be your own user name",
        passes=lambda c: _decide(c, c.bob, by="bob"),
        refused=lambda c: _decide(c, c.bob, by="alice"),
        want="by of an approval must be your own user name, bob, or left out",
    ),
    PolicyCase(
        "pilothouse-control-rights",
        "ids of steer messages that begin with sup- or judge-",
        passes=lambda c: _steer(c, c.operator, "sup-000004-careful-budget"),
        refused=lambda c: _steer(c, c.bob, "judge-000004-careful"),
        want="begin with sup- or judge- are the operator's to set and to remove: use another id",
    ),
    PolicyCase(
        "pilothouse-run-integrity",
        "input is immutable",
        passes=lambda c: c.patch(c.alice, c.live_run(**RUN_A), {"control": {"mode": "Pause"}}),
        refused=lambda c: c.patch(c.alice, c.live_run(**RUN_A), {"input": {"a": None, "b": 1}}),
        want="input is immutable: make another run",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-run-integrity",
        "overrides is immutable",
        passes=lambda c: c.patch(c.alice, c.live_run(**RUN_A), {"overrides": {"resources": {"requests": {"cpu": 1}}}}),
        refused=lambda c: c.patch(
            c.alice, c.live_run(**RUN_A), {"overrides": {"resources": {"requests": {"cpu": None, "gpu": 1}}}}
        ),
        want="overrides is immutable: make another run",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-run-integrity",
        "a decision, its arguments included, cannot be changed",
        passes=lambda c: _change_edit(c, {"mode": "Pause"}),
        refused=lambda c: _change_edit(c, {"approvals": {CALL: {"arguments": {"amount": None, "sum": 5}}}}),
        want="a decision, its arguments included, cannot be changed once it is set",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-run-integrity",
        "no such call waits for an approval",
        passes=lambda c: _decide(c, c.bob),
        refused=lambda c: _decide(c, c.bob, call="t4-0-00000000"),
        want="no call t4-0-00000000 waits for an approval: see status.run.pendingApprovals",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-run-integrity",
        "this run is finished",
        passes=lambda c: _after_end(c, c.alice, {"metadata": {"labels": {"pilothouse.dev/finished": "true"}}}),
        refused=lambda c: _after_end(c, c.alice, {"spec": {"control": {"mode": "Pause"}}}),
        want="this run is finished: control and limits can no longer be changed",
        want_status=422,
    ),
    PolicyCase(
        "pilothouse-child-runs",
        "only the operator makes a run a child of another",
        passes=lambda c: _create_child(c, c.operator, owner=True),
        refused=lambda c: _create_child(c, c.alice, owner=True),
        want="only the operator makes a run a child of another: a run asks for its children",
    ),
    PolicyCase(
        "pilothouse-child-runs",
        "the labels pilothouse.dev/parent",
        passes=lambda c: _create_child(c, c.operator, owner=False),
        refused=lambda c: _create_child(c, c.alice, owner=False),
        want="pilothouse.dev/copied-mode are the operator's",
    ),
    PolicyCase(
        "pilothouse-runner-pods",
        "only the operator makes runner pods",
        passes=lambda c: _create_pod(c, c.operator, **MANAGED),
        refused=lambda c: _create_pod(c, c.world.admin, **MANAGED),
        want="and use a runner's ServiceAccount (prun): create an AgentRun instead",
    ),
)


def test_every_validation_has_a_case_and_every_case_a_validation() -> None:
    validations = {
        (document["metadata"]["name"], validation["message"])
        for path in POLICIES.glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        for validation in document["spec"].get("validations", [])
    }
    named = {
        (policy, message)
        for policy, message in validations
        if any(case.policy == policy and message.startswith(case.message) for case in CASES)
    }

    assert validations - named == set(), "validations without a case"
    assert len(CASES) == len(validations)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.policy}: {case.message}")
def test_a_policy_lets_the_right_caller_pass_and_tells_the_wrong_one_what_to_do(cast: Cast, case: PolicyCase) -> None:
    passed = case.passes(cast)
    refused = case.refused(cast)

    assert passed.is_accepted, passed.message
    assert refused.status == case.want_status, refused
    assert f"ValidatingAdmissionPolicy '{case.policy}'" in refused.message
    assert case.want in refused.message


def test_every_policy_denies_fails_closed_and_is_bound() -> None:
    documents = [document for path in POLICIES.glob("*.yaml") for document in yaml.safe_load_all(path.read_text())]
    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy"}
    bindings = {d["spec"]["policyName"]: d["spec"] for d in documents if d["kind"].endswith("Binding")}

    assert len(policies) == 6
    assert {spec["failurePolicy"] for spec in policies.values()} == {"Fail"}
    assert {name: ["Deny"] for name in policies} == {name: spec["validationActions"] for name, spec in bindings.items()}


def test_the_api_server_finds_no_type_error_in_a_policy(world: World) -> None:
    """It judges with the CRDs at hand, and says what it found in the policy's status."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    policies = [
        p for p in must(world.admin.call("GET", path))["items"] if p["metadata"]["name"].startswith("pilothouse")
    ]

    assert len(policies) == 6
    assert {p["metadata"]["name"]: p["status"].get("typeChecking", {}).get("expressionWarnings") for p in policies} == {
        p["metadata"]["name"]: None for p in policies
    }


def test_a_runner_of_a_stale_attempt_is_refused_although_its_json_patch_has_no_fence(cast: Cast) -> None:
    run = cast.live_run()
    cast.world.report(run, {"attempt": 2, "pod": {"name": "own-2"}})

    refused = cast.report(cast.runner, run, {"run": {"attempt": 1, "turn": 9}})

    assert refused.status == 422
    assert "this token belongs to pod own-1, the pod of this run is own-2" in refused.message


def test_a_pod_of_the_same_name_in_another_namespace_is_not_the_runs_pod(cast: Cast, world: World) -> None:
    other = f"{world.namespace}-elsewhere"
    must(world.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": other}}))
    namesake = world.holder("prun", pod="own-1", namespace=other)

    refused = cast.report(namesake, cast.live_run(), {"run": {"attempt": 1}})

    assert refused.status == 422
    assert "a runner reports only on the run whose status.pod.name is its own pod" in refused.message


def test_a_runner_cannot_take_away_what_the_operator_wrote(cast: Cast) -> None:
    refused = cast.report(cast.runner, cast.live_run(), {"phase": None})

    assert refused.status == 422
    assert "status.phase belongs to the operator" in refused.message


def test_a_runner_can_make_no_object_and_steer_no_run(cast: Cast) -> None:
    raw = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "child"}}

    created = cast.runner.create(cast.world.namespace, {**raw, "spec": {"workflowRef": {"name": "w"}}})
    steered = _steer(cast, cast.runner)

    assert created.status == 403
    assert "use another ServiceAccount for this" in created.message
    assert steered.status in (403, 422)  # two policies refuse it, in no fixed order


def test_a_program_in_a_pod_may_create_and_delete_runs_and_apply_them_again_unchanged(cast: Cast) -> None:
    namespace, name = cast.world.namespace, cast.world.name()
    raw = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name}}
    whole = {**raw, "spec": {"workflowRef": {"name": "w"}}}

    must(cast.program.create(namespace, whole))
    must(cast.program.patch(namespace, "AgentRun", name, {"spec": whole["spec"]}))
    must(cast.program.delete(namespace, "AgentRun", name))


def test_a_hand_that_leaves_by_alone_is_not_asked_whose_name_stands_there(cast: Cast) -> None:
    run = cast.live_run(control={"mode": "Pause"})
    must(cast.patch(cast.alice, run, {"control": {"by": "alice"}}))

    must(cast.patch(cast.bob, run, {"control": {"mode": "Run"}}))


def test_the_operator_may_sign_for_another(cast: Cast) -> None:
    must(cast.patch(cast.operator, cast.live_run(), {"control": {"mode": "Pause", "by": "carol"}}))


def test_limits_in_a_new_run_need_the_verb_limit_too(cast: Cast) -> None:
    raw = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": cast.world.name()}}
    whole = {**raw, "spec": {"workflowRef": {"name": "w"}, "limits": {"tokenBudget": 9}}}
    unnamed = {**whole, "metadata": {"generateName": "run-"}}

    assert cast.alice.create(cast.world.namespace, whole).status == 403
    assert cast.alice.create(cast.world.namespace, unnamed).status == 403
    must(cast.bob.create(cast.world.namespace, whole))
    must(cast.bob.create(cast.world.namespace, unnamed))


def test_an_approval_cannot_stand_in_a_new_run(cast: Cast) -> None:
    raw = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": cast.world.name()}}
    control = {"approvals": {CALL: {"decision": "Approve"}}}

    answer = cast.bob.create(cast.world.namespace, {**raw, "spec": {"workflowRef": {"name": "w"}, "control": control}})

    assert answer.status == 422
    assert f"no call {CALL} waits for an approval" in answer.message


def test_nobody_but_the_operator_removes_the_steers_of_supervision(cast: Cast) -> None:
    run = cast.live_run()
    must(cast.patch(cast.operator, run, {"control": {"steer": {"sup-000001-a-b": {"message": "x"}}}}))

    refused = cast.patch(cast.bob, run, {"control": {"steer": None}})

    assert refused.status == 403
    assert "remove your own entries one by one" in refused.message


def test_a_pod_without_the_label_or_with_another_account_is_nobodys_business(cast: Cast) -> None:
    world = cast.world
    world.account("app")

    must(_create_pod(cast, world.admin))
    world.pod(world.name("pod"), "app", labels=MANAGED)


def test_limits_of_a_finished_run_cannot_be_changed(cast: Cast) -> None:
    refused = _after_end(cast, cast.bob, {"spec": {"limits": {"tokenBudget": 9}}})

    assert refused.status == 422
    assert "this run is finished" in refused.message
