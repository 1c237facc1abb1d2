"""Sessions on a real API server: one run of each goes on at a time, in order of creation (engine.md §11)."""

from __future__ import annotations

import pytest

from integration.operator.stage import Stage, condition, eventually, stays
from pilothouse_kubernetes.client import Raw

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio


async def wait_busy(stage: Stage, name: str, holder: str) -> Raw:
    async def look() -> Raw | None:
        raw = await stage.run(name)
        ready = condition(raw, "Ready")
        is_busy = ready is not None and ready["reason"] == "SessionBusy" and f"run {holder} " in ready["message"]
        return raw if is_busy else None

    return await eventually(look)


async def test_the_runs_of_a_session_wait_for_each_other_and_others_do_not(stage: Stage) -> None:
    await stage.operator(JOURNAL_CLAIM="journals").start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run("r1", session="c-17")
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running", "r1")
    await stage.apply_run("r2", session="c-17")
    waiting = await wait_busy(stage, "r2", "r1")
    await stage.apply_run("r3", session="c-17")
    await wait_busy(stage, "r3", "r1")

    ready = condition(waiting, "Ready")
    assert waiting["status"]["phase"] == "Pending"
    assert ready is not None and ready["status"] == "True"
    assert "plan" not in waiting["status"] and "attempt" not in waiting["status"]
    await stage.apply_run("other", session="c-18")
    await stage.start_pod("other-1")

    async def attempts() -> list[int]:
        return [(await stage.run(name)).get("status", {}).get("attempt", 0) for name in ("r1", "r2", "r3")]

    await stays(attempts, [1, 0, 0], 0.5)
    await stage.succeed("r1")
    await stage.start_pod("r2-1")
    await wait_busy(stage, "r3", "r2")
    assert await attempts() == [1, 1, 0]
