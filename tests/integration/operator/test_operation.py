"""Running an operator: probes, metrics, the check of the CRDs, the sweep, settings."""

from __future__ import annotations

from typing import Any

import pytest

from integration.operator.stage import Stage, eventually
from pilothouse_kubernetes.client import Resource

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio

CRDS = Resource("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition")


async def test_probes_and_metrics_are_served(stage: Stage) -> None:
    operator = await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")

    assert (await operator.get("/livez")) == (200, "ok\n")
    assert (await operator.get("/readyz")) == (200, "ok\n")
    status, text = await operator.get("/metrics")
    assert status == 200
    assert "pilothouse_operator_is_leader 1.0" in text
    assert 'pilothouse_operator_cached_objects{kind="AgentRun"} 1.0' in text
    assert 'pilothouse_operator_api_requests_total{code="201",method="POST"}' in text


async def test_an_operator_without_the_fields_that_it_needs_is_not_ready_and_starts_nothing(stage: Stage) -> None:
    crd = await stage.api.get(CRDS, None, "agentruns.pilothouse.dev")
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    kept = spec["properties"].pop("limits")
    rules, spec["x-kubernetes-validations"] = spec["x-kubernetes-validations"], []
    await stage.api.replace(CRDS, None, "agentruns.pilothouse.dev", crd)
    operator = stage.operator()
    try:
        await operator.start(wait=False)
        problem = await operator.wait_logged("operator.not_ready")
        status, text = await operator.get("/readyz")
    finally:
        fresh = await stage.api.get(CRDS, None, "agentruns.pilothouse.dev")
        spec = fresh["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"]["limits"], spec["x-kubernetes-validations"] = kept, rules
        await stage.api.replace(CRDS, None, "agentruns.pilothouse.dev", fresh)

    assert "spec.limits" in problem["problem"]
    assert (status, "spec.limits" in text) == (503, True)
    await operator.wait_logged("operator.loaded")
    assert (await operator.get("/readyz"))[0] == 200


async def test_a_run_that_is_nested_deeper_than_python_reads_holds_up_no_other(stage: Stage) -> None:
    deep: Any = 1
    for _ in range(3000):
        deep = {"a": deep}
    operator = await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run("deep", input=deep)
    await stage.wait_condition("Ready", "False", "InputInvalid", "deep")
    await operator.stop()
    await stage.apply_run()
    await stage.operator().start()  # which lists what the other was told of
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")


async def test_a_sweep_of_a_healthy_operator_finds_nothing(stage: Stage) -> None:
    operator = await stage.operator(SWEEP_SECONDS="1").start()
    await stage.apply_agent()
    await stage.apply_workflow()
    for name in ("r1", "r2"):
        await stage.apply_run(name)
        await stage.start_pod(f"{name}-1")
        await stage.succeed(name)
        await stage.wait_phase("Succeeded", name)

    async def swept() -> bool:
        _, text = await operator.get("/metrics")
        lists = 'pilothouse_operator_reconciles_total{kind="Finished",result="Done"}'
        return any(line.startswith(lists) and float(line.split()[-1]) >= 6 for line in text.splitlines())

    await eventually(swept)
    _, text = await operator.get("/metrics")
    assert "pilothouse_operator_sweep_drift_total{" not in text


async def test_a_wrong_setting_ends_the_process_with_a_sentence(stage: Stage) -> None:
    operator = await stage.operator(CEILINGS='{"pauseSeconds": -1}').start(wait=False)

    assert await operator.wait() == 2
    assert "pauseSeconds" in operator.log() or "pause_seconds" in operator.log()
    assert "Traceback" not in operator.log()


async def test_two_operators_of_two_sets_of_namespaces_do_not_meet(stage: Stage) -> None:
    await stage.operator(WATCH_NAMESPACES="somewhere-else", LEASE_NAME=f"{stage.namespace}-b").start(wait=False)
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()

    await stage.wait_pod("r1-1")


async def test_an_operator_of_all_namespaces_serves_each(stage: Stage) -> None:
    await stage.operator(WATCH_NAMESPACES="").start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    await stage.succeed()

    await stage.wait_phase("Succeeded")
