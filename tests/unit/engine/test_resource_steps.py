"""Resource in the loop: signals that route, errors that recovery counts, crashes between a write and its answer."""

from typing import Any

import pytest

from pilothouse_engine.facts import CallFinished
from pilothouse_engine.ports import ResourceFailure
from pilothouse_engine.testing.resources import MemoryResources
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    codes,
    response_step,
    scenario,
    tool_texts,
)

pytestmark = pytest.mark.anyio


def resource(operation: str, **fields: Any) -> dict[str, Any]:
    call = {"operation": operation, "apiVersion": "v1", "kind": "ConfigMap", **fields}
    return {"kind": "Resource", "resource": call}


def resource_tool(operation: str, **fields: Any) -> dict[str, Any]:
    return {"name": "limits", "description": "Limits of a team.", "inlineStep": resource(operation, **fields)}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_what_is_not_found_and_forbidden_are_signals_that_route_and_can_be_told() -> None:
    steps = [
        {"id": "look", **resource("Get", name="limits"), "routes": {"not_found": "write"}},
        {"id": "write", **resource("Delete", name="old"), "routes": {"forbidden": "say"}},
        {"id": "skipped", **resource("Get", name="skipped")},
        response_step("say", cause="_last_error", kind="_last_error_type"),
    ]
    run = scenario([], *steps)
    run.resources.failures = [
        ResourceFailure("NotFound", "there is no such object"),
        ResourceFailure("Forbidden", "it is forbidden"),
    ]
    end = await run.finish()
    assert end.exit.reason == "Complete"
    assert end.result == {"cause": "Delete ConfigMap old: it is forbidden", "kind": "forbidden"}


async def test_an_unmapped_not_found_fails_the_run_and_says_what_was_missing() -> None:
    end = await scenario([], {"id": "look", **resource("Get", name="limits")}).finish()
    assert (end.exit.signal, end.exit.reason) == ("not_found", "UnroutedSignal")
    assert "Get ConfigMap limits: there is no such object" in (end.exit.message or "")


async def test_a_model_is_told_what_a_tool_did_not_find_and_recovery_counts_it() -> None:
    model = ListModel(
        [calls(call("limits", {"team": "red"})), calls(call("limits", {"team": "blue"})), answer("resolved")]
    )
    run = Scenario(
        build_plan(agent_step(tools=[resource_tool("Get", name="limits-{{ team }}")])),
        model,
        resources=MemoryResources([config_map("limits-blue", max="3")]),
    )
    await run.finish()
    prompt = model.requests[-1]
    assert codes(prompt) == ["tool_error", None]
    assert '"signal":"not_found"' in tool_texts(prompt)[0]
    assert '"data":{"max":"3"}' in tool_texts(prompt)[1]
    first, second = await run.facts_of(CallFinished)
    assert (first.code, first.signal, first.error_type) == ("tool_error", "not_found", "NotFound")
    assert (second.code, second.signal) == (None, "default")
    assert run.snapshot.tool_errors == 1


async def test_a_person_who_approves_a_step_sees_nothing_of_what_it_writes_into_a_secret() -> None:
    body = {"stringData": {"token-for-crm": "{{ ticket }}"}, "metadata": {"labels": {"team": "red"}}}
    step = resource("Create", name="s", body=body)
    step["resource"]["kind"] = "Secret"
    rule = {"name": "writes", "at": "ToolCall", "cel": "args.operation == 'Create'", "verdict": "RequireApproval"}
    run = scenario([], {"id": "make", **step}, plan={"policy": [rule]})
    await run.release()
    [pending] = run.snapshot.pending_approvals
    shown = pending.arguments["body"]
    assert shown["metadata"]["labels"] == {"team": "red"}
    assert shown["stringData"] == {"token-for-crm": "[masked]"}
    assert "I was charged twice" not in str(run.store.snapshots)


class Killed(BaseException):
    """The process is gone."""


class DiesAfterFirstCall(MemoryResources):
    """Carries the first call out and dies before its answer is known."""

    async def call(self, request: Any) -> Any:
        got = await super().call(request)
        if len(self.requests) == 1:
            raise Killed
        return got


def creating(effect: str, operation: str = "Create") -> Scenario:
    fields = {"body": {"metadata": {"generateName": "made-"}}} if operation == "Create" else {"name": "old"}
    plan = build_plan({"id": "make", "effect": effect, **resource(operation, **fields)})
    return Scenario(plan, ListModel([]), resources=DiesAfterFirstCall([config_map("old")]))


async def crash(run: Scenario) -> None:
    with pytest.raises(Killed):
        await run.attempt()


@pytest.mark.parametrize(("effect", "want"), [("Idempotent", ("default", "Complete")), ("Once", ("error", "Error"))])
async def test_a_create_is_repeated_after_a_crash_only_where_it_may_be(effect: str, want: tuple[str, str]) -> None:
    run = creating(effect)
    await crash(run)
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == want
    assert len([key for key in run.resources.objects if key[3].startswith("made-")]) == 1
    assert [unknown.tool for unknown in run.snapshot.effects.unknown] == (["make"] if effect == "Once" else [])


async def test_a_read_is_repeated_after_a_crash() -> None:
    run = Scenario(
        build_plan({"id": "look", **resource("Get", name="old")}),
        ListModel([]),
        resources=DiesAfterFirstCall([config_map("old")]),
    )
    await crash(run)
    assert (await run.finish()).exit.reason == "Complete"
    assert len(run.resources.requests) == 2
