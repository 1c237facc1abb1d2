"""A run from apply to its end, as people see it."""

from __future__ import annotations

import pytest
from stage import Stage, condition

from pilothouse_api import names

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio


async def test_a_run_becomes_a_pod_and_ends_succeeded(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()

    pod = await stage.start_pod("r1-1")
    running = await stage.wait_phase("Running")
    await stage.succeed()
    ended = await stage.wait_phase("Succeeded")

    assert pod["metadata"]["labels"][names.LABEL_RUN] == "r1"
    assert running["status"]["attempt"] == 1
    assert running["status"]["pod"] == {"name": "r1-1", "node": "stand-in"}
    assert ended["status"]["exit"] == {"signal": "default", "reason": "Complete", "message": "done"}
    assert ended["status"]["result"] == {"answer": 42}
    for kind in ("Ready", "Complete", "Finished", "EffectsSettled", "Accepted", "Started"):
        found = condition(ended, kind)
        assert found is not None and found["status"] == "True", kind
