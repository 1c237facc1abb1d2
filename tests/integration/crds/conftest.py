"""A real API server with the contract in it: CRDs, admission policies, and people and programs who call."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
import urllib3

from integration.crds.contract_world import OPERATOR_NAMESPACE, World
from integration.crds.kube_callers import Caller, must
from support.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING = ["get", "list", "watch", "create", "update", "patch", "delete"]


@pytest.fixture(scope="session")
def contract(control_plane: LocalCluster) -> Caller:
    """The administrator of a control plane in which CRDs and admission policies are in force."""
    pool = urllib3.PoolManager(ca_certs=str(control_plane.ca_path), maxsize=50)
    admin = Caller(control_plane, pool, control_plane.token)
    control_plane.run_tool("kubectl", "apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.wait_established("--recursive=false", "-f", str(ROOT / "crds"))
    control_plane.run_tool("kubectl", "apply", "--server-side", "-f", str(ROOT / "crds" / "policies"))
    return admin


@pytest.fixture(scope="session")
def world(contract: Caller, control_plane: LocalCluster) -> World:
    made = World(contract, f"contract-{uuid.uuid4().hex[:8]}")
    control_plane.run_tool("kubectl", "apply", "-f", "-", stdin=RIGHTS.replace("NAMESPACE", made.namespace))
    must(contract.call("POST", "/api/v1/namespaces", {"metadata": {"name": made.namespace}}))
    answer = contract.call("POST", "/api/v1/namespaces", {"metadata": {"name": OPERATOR_NAMESPACE}})
    assert answer.status in (201, 409)
    made.account("prun")
    _wait_for_policies(made)
    return made


def _wait_for_policies(world: World) -> None:
    """Return when the API server judges by all policies, which it learns of by a watch."""
    run = world.run(input={"a": 1})
    runner = world.holder("prun", pod="wait-for-policies")
    unbound = world.holder("prun")
    alice = world.user("alice")
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    renamed = {"spec": {"input": {"a": None, "b": 1}}}
    report = {"status": {"phase": "x"}}
    probes = {
        "control-rights": lambda: alice.patch(world.namespace, "AgentRun", run, SIGNED_BY_BOB, dry_run=True),
        "run-integrity": lambda: alice.patch(world.namespace, "AgentRun", run, renamed, dry_run=True),
        "runner-accounts": lambda: unbound.patch(world.namespace, "AgentRun", run, report, dry_run=True),
        "runner-wall": lambda: runner.patch(world.namespace, "AgentRun", run, report, status=True, dry_run=True),
        "child-runs": lambda: alice.create(world.namespace, MARKED_AS_A_CHILD, dry_run=True),
        "runner-pods": lambda: world.admin.call("POST", pods, RUNNER_POD, dryRun="All"),
    }
    deadline = time.monotonic() + 90
    while probes:
        for policy, probe in list(probes.items()):
            answer = probe()
            if not answer.is_accepted:
                assert f"'pilothouse-{policy}'" in answer.message, answer
                del probes[policy]
            assert time.monotonic() < deadline, f"{policy} is not in force after 90 s: {answer}"


MARKED_AS_A_CHILD = {
    "apiVersion": "pilothouse.dev/v1alpha1",
    "kind": "AgentRun",
    "metadata": {"name": "marked", "labels": {"pilothouse.dev/parent": "other"}},
    "spec": {"workflowRef": {"name": "flow"}},
}
SIGNED_BY_BOB = {"spec": {"control": {"by": "bob"}}}
RUNNER_POD = {
    "metadata": {"name": "p", "labels": {"app.kubernetes.io/managed-by": "pilothouse"}},
    "spec": {"serviceAccountName": "prun", "containers": [{"name": "main", "image": "none"}]},
}
RIGHTS = f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: contract-test-write}}
rules:
  - {{apiGroups: [pilothouse.dev], resources: ["*"], verbs: {EVERYTHING}}}
  - {{apiGroups: [""], resources: [pods], verbs: [create]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: contract-test-write}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: contract-test-write}}
subjects:
  - {{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:serviceaccounts:NAMESPACE"}}
  - {{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:serviceaccounts:NAMESPACE-elsewhere"}}
  - {{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:serviceaccounts:{OPERATOR_NAMESPACE}"}}
  - {{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}}
  - {{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: contract-test-decide}}
rules:
  - {{apiGroups: [pilothouse.dev], resources: [agentruns], verbs: [approve, limit]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: contract-test-decide}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: contract-test-decide}}
subjects:
  - {{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}}
"""
"""Whoever may write may do so here by RBAC: what is refused, the policies refuse. Only bob may approve and limit."""
