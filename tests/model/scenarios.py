"""What is checked: small runs, each with the faults and the wishes that are about one part of the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model.world import Left, Scenario
from unit.engine.scenarios import agent_step, answer, call, calls, function_step, function_tool, written_plan

PAY = function_step("pay", effect="Once")


def _plan(*steps: dict[str, Any]) -> Any:
    return written_plan(*steps, input={}, active_deadline_seconds=10_000_000)


def directives(*modes: str) -> Any:
    def wishes(control: dict[str, Any], status: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [
            (f"somebody asks for {mode}", {**control, "mode": mode}) for mode in modes if control.get("mode") != mode
        ]

    return wishes


EFFECTS = Scenario("effects", _plan(PAY), Left(crashes=1, partitions=1), times=(0.0, 60.0))
ZOMBIE = Scenario("zombie", _plan(PAY), Left(partitions=1), times=(0.0, 60.0))
CRASH = Scenario("crash", _plan(PAY), Left(crashes=2, restarts=1), times=(0.0,))
DRAIN = Scenario("drain", _plan(PAY), Left(evictions=1, crashes=1), times=(0.0, 60.0))
LOST = Scenario("lost", _plan(PAY), Left(lost=1, crashes=1), times=(0.0,))
LATE = Scenario("late", _plan(PAY), Left(late=1, wishes=1), times=(0.0,), wishes=directives("Abort"))
REMADE = Scenario("remade", _plan(PAY), Left(partitions=1, restarts=1), times=(0.0,))
EPHEMERAL = Scenario("ephemeral", _plan(PAY), Left(partitions=1), times=(0.0, 60.0), is_durable=False)
ABORT = Scenario("abort", _plan(PAY), Left(wishes=1, crashes=1), times=(0.0, 60.0, 120.0), wishes=directives("Abort"))
FINISH = Scenario("finish", _plan(PAY), Left(wishes=2, crashes=1), times=(0.0,), wishes=directives("Finish", "Abort"))
TWO = Scenario("two", _plan(PAY), Left(wishes=1, restarts=1), operators=2, times=(0.0,), wishes=directives("Abort"))


# ---------------------------------------------------------------- approvals

_PARAMETERS = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
_GATED = function_tool("gated", effect="Once", parameters=_PARAMETERS, approval="Always")
_ASKED = call("gated", {"amount": 5})


def _replies(turn: int) -> Any:
    return calls(_ASKED) if turn == 1 else answer("resolved")


def decisions(*wanted: str) -> Any:
    """What a person may decide on the call that is pending, once it is shown; `Edit` and `Wrong` change arguments."""
    made = {
        "Approve": {"decision": "Approve"},
        "Deny": {"decision": "Deny"},
        "Edit": {"decision": "Approve", "arguments": {"amount": 7}},
        "Wrong": {"decision": "Approve", "arguments": {"amount": "much"}},
    }

    def wishes(control: dict[str, Any], status: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        pending = (status.get("run") or {}).get("pendingApprovals") or []
        given = control.get("approvals") or {}
        found = []
        for one in pending:
            key = one["callId"]
            if key not in given:
                found += [
                    (f"somebody decides {word} on {key}", {**control, "approvals": {**given, key: made[word]}})
                    for word in wanted
                    if word in made
                ]
        if "Withdraw" in wanted and given:
            found.append(("somebody withdraws the decision", {**control, "approvals": {}}))
        return found + [
            (f"somebody asks for {mode}", {**control, "mode": mode})
            for mode in ("Abort", "Finish")
            if mode in wanted and control.get("mode") != mode
        ]

    return wishes


_AGENT = _plan(agent_step(tools=[_GATED], routes={"resolved": "end"}))
APPROVAL = Scenario(
    "approval", _AGENT, Left(wishes=2), times=(0.0, 60.0), replies=_replies,
    wishes=decisions("Approve", "Deny", "Edit", "Wrong", "Withdraw"),
)  # fmt: skip
APPROVAL_CRASH = Scenario(
    "approval-crash", _AGENT, Left(wishes=1, crashes=1), times=(0.0,), replies=_replies, wishes=decisions("Approve")
)
APPROVAL_LATE = Scenario(
    "approval-late", _AGENT, Left(wishes=2), times=(0.0, 60.0, 90_000.0), replies=_replies,
    wishes=decisions("Approve", "Abort", "Finish"),
)  # fmt: skip
PAUSE = Scenario("pause", _plan(PAY), Left(wishes=3), times=(0.0, 400.0), wishes=directives("Pause", "Run", "Abort"))


# ---------------------------------------------------------------- Sync supervision

_PAYING = _plan(agent_step(tools=[function_tool("pay", effect="Once"), function_tool("refund", effect="Once")]))


def _payments(turn: int) -> Any:
    return calls(call("pay"), call("refund")) if turn == 1 else answer("resolved")


def abort_first(turn: int) -> str | None:
    """Abort on seeing the first turn."""
    return "Abort" if turn == 1 else None


def _barrier(on_timeout: str) -> dict[str, Any]:
    return {"timeoutSeconds": 60, "onTimeout": on_timeout}


SYNC = Scenario(
    "sync", _PAYING, Left(crashes=1, deaths=1), times=(0.0, 100.0), replies=_payments, barrier=_barrier("Continue")
)
SYNC_ABORT = Scenario(
    "sync-abort", _PAYING, Left(crashes=1, deaths=1), times=(0.0,), replies=_payments, barrier=_barrier("Pause"),
    verdict=abort_first,
)  # fmt: skip
SYNC_DEATH = replace(SYNC_ABORT, name="sync-death", left=Left(deaths=1))
SYNC_LATE = Scenario(
    "sync-late", _PAYING, Left(lost=1, wishes=1), times=(0.0, 100.0, 200.0), replies=_payments,
    barrier=_barrier("Pause"), verdict=abort_first, wishes=directives("Run", "Finish"),
)  # fmt: skip


# ---------------------------------------------------------------- the list

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        CRASH, LOST, LATE, DRAIN, ZOMBIE, REMADE, EPHEMERAL, ABORT, FINISH, TWO, PAUSE,
        APPROVAL, APPROVAL_CRASH, APPROVAL_LATE, SYNC, SYNC_ABORT, SYNC_DEATH, SYNC_LATE,
    )
}  # fmt: skip
"""All of them by name."""

WHOLE = ("crash", "lost", "late", "approval-crash", "sync-death")
"""Small enough that all their states are looked at each time; through the others go random ways."""
