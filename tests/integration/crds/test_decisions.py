"""What of a decision survives on its way through a real API server: a merge-patch drops null, so that taking an
argument away has a field of its own."""

from __future__ import annotations

from typing import Any

from integration.crds.contract_world import World
from integration.crds.kube_callers import Answer, must

CALL = "t3-0-9f2c11ab"
WAITING = {"attempt": 1, "run": {"attempt": 1, "pendingApprovals": [{"callId": CALL, "tool": "refund"}]}}


def waiting(world: World) -> str:
    return world.run(WAITING, control={"steer": {"a": {"message": "x"}}})


def decide(world: World, run: str, **decision: Any) -> Answer:
    return world.user("bob").control(world.namespace, run, approvals={CALL: {"decision": "Approve", **decision}})


def stored(world: World, run: str) -> Any:
    return world.read(run)["spec"]["control"]["approvals"][CALL]


def test_a_merge_patch_drops_the_null_of_an_edit_and_keeps_what_remove_names(world: World) -> None:
    run = waiting(world)

    must(decide(world, run, arguments={"note": None, "to": {"iban": None, "name": "Jo"}}, remove=["note"]))

    assert stored(world, run) == {
        "decision": "Approve",
        "arguments": {"to": {"name": "Jo"}},
        "remove": ["note"],
    }


def test_a_json_patch_keeps_the_null_of_an_edit(world: World) -> None:
    run = waiting(world)
    decision = {"decision": "Approve", "arguments": {"note": None}}

    must(
        world.user("bob").patch(
            world.namespace,
            "AgentRun",
            run,
            [{"op": "add", "path": "/spec/control/approvals", "value": {CALL: decision}}],
        )
    )

    assert stored(world, run) == decision


def test_remove_can_be_changed_no_more_than_the_rest_of_a_decision(world: World) -> None:
    run = waiting(world)
    must(decide(world, run, remove=["note"]))

    refused = decide(world, run, remove=["amount"])
    must(world.user("bob").control(world.namespace, run, approvals={CALL: None}))
    must(decide(world, run, remove=["amount"]))

    assert refused.status == 422
    assert "cannot be changed once it is set" in refused.message
    assert stored(world, run)["remove"] == ["amount"]
