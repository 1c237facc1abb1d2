"""Which hooks fire: a table of facts, and what each of them fires (engine.md §15)."""

from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_api.digests import text_digest
from pilothouse_api.hooks import PAYLOAD_KEYS, HookTextError, parse_hooks
from pilothouse_api.structs import Plan, PlannedText
from pilothouse_engine.facts import (
    AskedCall,
    CallFinished,
    CallStarted,
    ChildRequested,
    Fact,
    ModelStarted,
    PromptOpened,
    ReplyReceived,
    RunStarted,
    StepEntered,
    StepFinished,
)
from pilothouse_engine.hooks.firings import build_payload, firings, plan_hooks
from pilothouse_engine.state import RunState
from unit.engine.scenarios import agent_step, build_plan, function_tool, response_step

EVENTS = ("BeforeStep", "AfterStep", "BeforeTool", "AfterTool", "OnError")
ALL = [{"event": event, "action": "Log"} for event in EVENTS]
ID, OTHER = "t1-0-aaaaaaaa", "t1-1-bbbbbbbb"
TOOLS = [function_tool("lookup"), {"name": "fetch", "description": "x", "step": "crm", "effect": "ReadOnly"}]
CRM = {"id": "crm", "kind": "APICall", "toolOnly": True, "apiCall": {"url": "http://x/"}}

ENTERED = StepEntered(1.0, "work", 1, "Agent")
TELLS = StepEntered(1.0, "tell", 1, "Response", 1)


def plan_of(**hooks: Any) -> Plan:
    return build_plan(
        agent_step(tools=TOOLS, hooks=hooks.get("agent", [])) | {"hooks": hooks.get("work", [])},
        response_step("tell", a="b") | {"hooks": hooks.get("tell", [])},
        CRM | {"hooks": hooks.get("crm", [])},
        hooks=hooks.get("workflow", []),
    )


def asked(identity: str, name: str, is_declared: bool = True) -> AskedCall:
    return AskedCall(identity, "p", name, "{}", identity[-8:] * 8, is_declared)


def started(identity: str, tool: str) -> CallStarted:
    return CallStarted(2.0, identity, tool, "ReadOnly", "", "d", 1)


def in_batch(*calls: AskedCall) -> RunState:
    return state_of(
        ENTERED,
        PromptOpened(1.0, ()),
        ModelStarted(1.0, 1, 1, "Regular", 0, 1, 0, 0),
        ReplyReceived(1.0, "", calls),
    )


def state_of(*facts: Fact) -> RunState:
    state = RunState()
    for fact in (RunStarted(1.0, "p"), *facts):
        state.apply(fact)
    return state


def after(state: RunState, *facts: Fact) -> RunState:
    for fact in facts:
        state.apply(fact)
    return state


FAILED = CallFinished(3.0, ID, "{}", "tool_error", "error", message="it is down", error_type="Timeout")

ROWS: list[tuple[str, RunState, Fact, list[str]]] = [
    ("a step begins", state_of(), ENTERED, ["BeforeStep work"]),
    ("a step ends", state_of(ENTERED), StepFinished(2.0, "resolved"), ["AfterStep work resolved"]),
    (
        "a step fails",
        state_of(TELLS),
        StepFinished(2.0, "error", error_type="MissingContext", error_message="no b"),
        ["OnError tell error MissingContext", "AfterStep tell error MissingContext"],
    ),
    (
        "a reserved exit is no error",
        state_of(ENTERED),
        StepFinished(2.0, "max_iterations", error_type="MaxIterations"),
        ["AfterStep work max_iterations MaxIterations"],
    ),
    ("a tool begins", in_batch(asked(ID, "lookup")), started(ID, "lookup"), ["BeforeTool work lookup"]),
    (
        "a tool ends",
        after(in_batch(asked(ID, "lookup")), started(ID, "lookup")),
        CallFinished(3.0, ID, "{}", signal="default"),
        ["AfterTool work lookup default"],
    ),
    (
        "a step that runs as a tool begins",
        in_batch(asked(ID, "fetch")),
        started(ID, "fetch"),
        ["BeforeTool work fetch", "BeforeStep crm fetch"],
    ),
    (
        "a step that ran as a tool failed",
        after(in_batch(asked(ID, "fetch")), started(ID, "fetch")),
        FAILED,
        ["OnError crm fetch error Timeout", "AfterStep crm fetch error Timeout", "AfterTool work fetch error Timeout"],
    ),
    (
        "a gate answered a call: its step did not run",
        in_batch(asked(ID, "fetch")),
        CallFinished(3.0, ID, "{}", "tool_invalid_arguments", "error", message="no customer"),
        ["AfterTool work fetch error tool_invalid_arguments"],
    ),
    (
        "a name that the model made up is not told",
        in_batch(asked(ID, "drop_tables", is_declared=False)),
        CallFinished(3.0, ID, "{}", "tool_unknown", "error"),
        ["AfterTool work (undeclared) error tool_unknown"],
    ),
    (
        "a call that nobody wants any more",
        in_batch(asked(ID, "lookup")),
        CallFinished(3.0, ID, "{}", "tool_call_unresolved"),
        [],
    ),
    (
        "a call that was under way when its step was ended",
        after(in_batch(asked(ID, "lookup"), asked(OTHER, "lookup")), started(ID, "lookup")),
        CallFinished(3.0, ID, "{}", "tool_call_unresolved"),
        ["AfterTool work lookup tool_call_unresolved"],
    ),
    (
        "a delegate is asked for",
        in_batch(asked(ID, "research")),
        ChildRequested(2.0, ID, 1, "Agent", "researcher", {}),
        ["BeforeTool work research"],
    ),
    (
        "a delegate that nobody waits for any more",
        after(in_batch(asked(ID, "research")), ChildRequested(2.0, ID, 1, "Agent", "researcher", {})),
        CallFinished(3.0, ID, "{}", "tool_call_unresolved"),
        ["AfterTool work research tool_call_unresolved"],
    ),
    (
        "a step of the graph delegates",
        state_of(TELLS),
        ChildRequested(2.0, ID, 1, "Workflow", "other", {}),
        [],
    ),
    ("the one call of a step of the graph begins", state_of(TELLS), started("t1-0-cccccccc", "tell"), []),
    (
        "the one call of a step of the graph ends",
        after(state_of(TELLS), started("t1-0-cccccccc", "tell")),
        CallFinished(3.0, "t1-0-cccccccc", "", signal="default"),
        [],
    ),
    ("a model is asked", state_of(ENTERED), ModelStarted(1.0, 1, 1, "Regular", 0, 1, 0, 0), []),
]


def said(fired: Any) -> list[str]:
    rows = ((f.hook.event, f.step, f.tool, f.signal, f.error_type) for f in fired)
    return [" ".join(word for word in row if word) for row in rows]


@pytest.mark.parametrize(("what", "state", "fact", "want"), ROWS, ids=[row[0] for row in ROWS])
def test_a_fact_fires_the_hooks_that_are_about_it(what: str, state: RunState, fact: Fact, want: list[str]) -> None:
    hooks = plan_hooks(plan_of(work=ALL, tell=ALL, crm=ALL))
    assert said(firings(hooks, state, fact)) == want


def test_hooks_of_workflow_step_and_agent_fire_in_this_order() -> None:
    hook = [{"event": "AfterStep", "action": "Log"}]
    hooks = plan_hooks(plan_of(workflow=hook, work=hook, agent=hook, tell=hook))
    fired = firings(hooks, state_of(ENTERED), StepFinished(2.0, "resolved"))
    assert [f.hook.id for f in fired] == ["workflow/0", "work/0", "work/agent/0"]


def test_a_step_that_runs_as_a_tool_fires_its_own_hooks_and_not_the_workflows() -> None:
    hooks = plan_hooks(plan_of(workflow=ALL, crm=ALL))
    fired = firings(hooks, in_batch(asked(ID, "fetch")), started(ID, "fetch"))
    assert [(f.hook.id, f.hook.event) for f in fired] == [("workflow/2", "BeforeTool"), ("crm/0", "BeforeStep")]


def test_a_payload_has_every_key_that_templates_may_name() -> None:
    plan = plan_of(work=ALL)
    state = after(in_batch(asked(ID, "lookup")), started(ID, "lookup"))
    [firing] = firings(plan_hooks(plan), state, FAILED)
    payload = build_payload(plan, firing)
    assert payload.keys() == PAYLOAD_KEYS
    assert payload == {
        "hook": "work/3",
        "event": "AfterTool",
        "workflow": "flow",
        "run": "run-1",
        "step": "work",
        "tool": "lookup",
        "signal": "error",
        "error": {"type": "Timeout", "message": "it is down"},
    }


def artifact(text: str, digest: str | None = None) -> Plan:
    plan = plan_of(workflow=[{"artifact": "audit@2"}], work=ALL[:1])
    planned = PlannedText(text=text, digest=digest or text_digest(text), resolved="artifact:audit@2")
    return replace(plan, texts={"artifact:audit@2": planned})


def test_an_artifact_stands_for_the_hooks_that_it_holds() -> None:
    plan = artifact("- {event: OnError, action: Log}\n- {event: BeforeStep, action: Notify, notify: {step: crm}}\n")
    [first, second] = firings(plan_hooks(plan), state_of(), ENTERED)
    assert (first.hook.id, first.hook.notify, second.hook.id) == ("workflow/audit@2/1", "crm", "work/0")


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (artifact("just a text"), "a list of hooks is wanted"),
        (artifact("[]", digest="0" * 64), "does not have the digest"),
        (replace(artifact("[]"), texts={}), "is not in the plan"),
    ],
)
def test_an_artifact_that_cannot_be_read_costs_its_own_hooks_only(plan: Plan, why: str) -> None:
    hooks = plan_hooks(plan)
    assert said(firings(hooks, state_of(), ENTERED)) == ["BeforeStep work"]
    assert why in hooks.unreadable["audit@2"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{event: OnError, action: Log}", "it is dict"),
        ("", "it is NoneType"),
        ("[[", "it is no YAML"),
        ("[&a {event: OnError, action: Log}, *a]", "YAML aliases"),
        ("[{event: OnError, action: Log}]" + " " * 70_000, "the limit is 65536"),
        ("[" + "{event: OnError, action: Log}," * 17 + "]", "it has 17 hooks; the limit is 16"),
        ("[{event: OnError}]", "hook 0 needs event and action"),
        ("[{event: Sometimes, action: Log}]", "hook 0.event"),
        ("[{event: OnError, action: Log, when: now}]", "hook 0.when"),
        ("[{event: OnError, action: Notify}]", "set notify exactly when"),
        ("[{event: OnError, action: Log, notify: {step: a}}]", "set notify exactly when"),
        ("[{artifact: other@1}]", "names an artifact"),
        ("[2026-13-45]", "cannot be read"),
    ],
)
def test_a_text_that_holds_no_hooks_says_why(text: str, why: str) -> None:
    with pytest.raises(HookTextError, match=why.replace(".", r"\.")):
        parse_hooks(text)
