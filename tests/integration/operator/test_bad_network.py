"""An API server that throttles, fails, hangs up, forgets and falls silent, seen through a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import yaml

from integration.operator.fault_proxy import Fault, FaultProxy, fault_proxy, watches, writes
from integration.operator.stage import OperatorProcess, Stage, eventually, stays
from pilothouse_kubernetes.connection import find_credentials

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio


@pytest.fixture
async def proxy(stage: Stage) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(find_credentials(str(stage.operator_kubeconfig))) as made:
        config = yaml.safe_load(stage.operator_kubeconfig.read_text())
        config["clusters"] = [{"name": entry["name"], "cluster": {"server": made.url}} for entry in config["clusters"]]
        path = stage.folder / "proxied.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        stage.operator_kubeconfig = path
        yield made
        made.heal()
        for process in stage.processes:
            await process.stop()


async def apply_all(stage: Stage, run: str = "r1") -> None:
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run(run)


@pytest.mark.parametrize("fault", ["Throttle", "Fail", "Reset"])
async def test_writes_that_fail_for_a_while_are_made_later(stage: Stage, proxy: FaultProxy, fault: Fault) -> None:
    await stage.operator().start()
    proxy.inject(fault, writes("/agentruns/r1/status"))
    await apply_all(stage)

    async def hit() -> bool:
        return len(proxy.hits) >= 2

    await eventually(hit)
    assert await stage.pods() == []
    proxy.heal()
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    await stage.succeed()

    await stage.wait_phase("Succeeded")


async def test_a_pod_whose_creation_was_answered_by_a_reset_is_not_made_twice(stage: Stage, proxy: FaultProxy) -> None:
    await stage.operator().start()
    proxy.inject("Reset", writes(f"/namespaces/{stage.namespace}/pods"))
    await apply_all(stage)

    async def hit() -> bool:
        return bool(proxy.hits)

    await eventually(hit)
    proxy.heal()
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")

    assert len(await stage.pods()) == 1
    assert (await stage.status())["attempt"] == 1


@pytest.mark.parametrize("fault", ["Reset", "Expire"])
async def test_a_watch_that_breaks_off_is_taken_up_again(stage: Stage, proxy: FaultProxy, fault: Fault) -> None:
    operator = await stage.operator().start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    proxy.inject(fault, watches("pods"))
    await stage.succeed()

    async def hit() -> bool:
        return bool(proxy.hits)

    await eventually(hit)
    proxy.heal()

    await stage.wait_phase("Succeeded")
    assert operator.process is not None and operator.process.returncode is None


async def test_what_a_silent_watch_hides_is_found_by_the_sweep(stage: Stage, proxy: FaultProxy) -> None:
    operator = await stage.operator(SWEEP_SECONDS="2").start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    proxy.inject("Silence", watches("pods"))
    proxy.inject("Silence", watches("agentruns"))
    await stage.succeed()
    await stage.apply_run("r2")

    await stage.wait_phase("Succeeded")
    await stage.wait_pod("r2-1")

    _, text = await operator.get("/metrics")
    assert 'pilothouse_operator_sweep_drift_total{kind="AgentRun"}' in text


async def test_a_lease_that_cannot_be_renewed_ends_the_process(stage: Stage, proxy: FaultProxy) -> None:
    operator = await stage.operator(LEASE_SECONDS="4", RENEW_SECONDS="3", RETRY_SECONDS="0.5").start()
    proxy.inject("Hang", lambda request: "/leases/" in request.path)

    assert await operator.wait() == 3


async def test_an_api_server_that_hangs_at_the_start_is_waited_for(stage: Stage, proxy: FaultProxy) -> None:
    proxy.inject("Fail", lambda request: "customresourcedefinitions" in request.path)
    operator = await stage.operator().start(wait=False)
    problem = await operator.wait_logged("operator.not_ready")
    assert "cannot be asked" in problem["problem"]
    assert (await operator.get("/livez"))[0] == 200
    await stays(lambda: ready(operator), False, 0.5)
    proxy.heal()

    await operator.wait_logged("operator.loaded")
    assert await ready(operator)


async def ready(operator: OperatorProcess) -> bool:
    return (await operator.get("/readyz"))[0] == 200
