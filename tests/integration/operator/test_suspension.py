"""A suspended namespace on a real API server: nothing begins, what has begun goes on, and it heals."""

from __future__ import annotations

import pytest
import yaml

from integration.operator.stage import SYSTEM, Stage, answered, eventually, operator_rules, park, stays
from pilothouse_api import names
from pilothouse_kubernetes.client import NAMESPACES
from pilothouse_operator.reconcile.suspension import FRESH

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio


async def suspend(stage: Stage, value: str | None) -> None:
    patch = {"metadata": {"annotations": {names.ANNOTATION_SUSPEND: value}}}
    await stage.api.merge_patch(NAMESPACES, None, stage.namespace, patch)


async def test_nothing_begins_in_a_suspended_namespace_and_what_has_begun_goes_on(stage: Stage) -> None:
    async def begun() -> list[str]:
        return sorted(raw["metadata"]["name"] for raw in await stage.pods())

    await stage.operator(JOURNAL_CLAIM="journals").start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run("old")
    await stage.start_pod("old-1")
    await stage.wait_phase("Running", "old")
    await suspend(stage, "true")
    await stays(begun, ["old-1"], FRESH.total_seconds())  # so old may be what the operator knows of the namespace
    await stage.apply_run("new")
    await stage.wait_condition("Ready", "False", "NamespaceSuspended", "new")
    await stage.apply_workflow("changed", trigger={"type": "OnChange"})

    async def warned() -> bool:
        return any("starts nothing" in line for line in (await stage.workflow("changed"))["status"].get("warnings", ()))

    await eventually(warned)
    await stays(begun, ["old-1"], 0.5)
    assert {raw["metadata"]["name"] for raw in await stage.runs()} == {"old", "new"}
    assert (await stage.status("new")).get("attempt") is None

    await stage.control("old", mode="Pause")
    await stage.publish("old", turn=1, parked=park(released=True), control=answered("Pause", 2))
    await stage.end_pod("old-1")
    await stage.wait_phase("Paused", "old")
    await stage.control("old", mode="Run")
    await stage.start_pod("old-2")

    await suspend(stage, None)
    await stage.start_pod("new-1")
    await stage.wait_phase("Running", "new")

    async def triggered() -> bool:
        return any(raw["metadata"]["name"].startswith("changed-g1-") for raw in await stage.runs())

    await eventually(triggered)


async def test_an_operator_of_one_namespace_may_read_that_one_and_no_other(stage: Stage) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "narrow", "namespace": stage.namespace},
        "rules": operator_rules(),
    }
    subject = {"kind": "ServiceAccount", "name": "narrow", "namespace": stage.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "narrow"}
    binding = {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}
    binding.pop("rules")
    stage.cluster.run_tool("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all([role, binding]))
    narrow = f"--as=system:serviceaccount:{stage.namespace}:narrow"
    assert "Active" in stage.cluster.run_tool("kubectl", "get", "namespace", stage.namespace, narrow)
    with pytest.raises(AssertionError, match="cannot get resource"):
        stage.cluster.run_tool("kubectl", "get", "namespace", SYSTEM, narrow)
