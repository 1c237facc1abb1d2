"""Sentences of the engine's specification that validation keeps (docs/spec/engine.yaml names the test of each)."""

from typing import Any

import pytest

from pilothouse_control.validation import Sources, as_document, validate
from unit.control.manifests import (
    Raw,
    a_model,
    a_run,
    a_tool,
    a_workflow,
    agent_step,
    an_agent,
    call_step,
    ref_step,
    response_step,
)

PRICE = {"inputPerMillionUSD": "1", "outputPerMillionUSD": "2"}
COST = {"costBudgetUSD": "0.50"}


def problems(*objects: Raw) -> list[str]:
    """The errors of some manifests, each as `check: sentence`."""
    found = validate(Sources([as_document(raw) for raw in objects], is_complete=False), durable_journal=True)
    return [f"{finding.check}: {finding.sentence}" for finding in found if finding.severity == "Error"]


def about(words: str, *objects: Raw) -> bool:
    return any(words in problem for problem in problems(*objects))


def test_a_budget_needs_what_it_is_counted_by() -> None:
    unbounded = {key: value for key, value in a_model().items() if key != "maxOutputTokens"}
    assert about("limits.tokenBudget needs", an_agent(limits={"tokenBudget": 9}, model=unbounded))
    assert problems(an_agent(limits={"tokenBudget": 9})) == []
    assert about("price", an_agent(limits=COST))
    assert problems(an_agent(limits=COST, model=a_model(price=PRICE))) == []


RESERVED = [
    "max_iterations",
    "budget_exceeded",
    "error",
    "aborted",
    "guardrail_violation",
    "policy_denied",
    "unrecoverable",
    "default",
    "end",
]


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_name_cannot_stand_in_an_enum(name: str) -> None:
    assert about("outcome.enum cannot hold reserved exits", an_agent(outcome={"enum": ["fine", name]}))
    assert not about("outcome.enum", an_agent(outcome={"enum": ["fine"]}))


def with_step_tool(step: Raw, **tool: Any) -> list[Raw]:
    agent = agent_step(tools=[a_tool(inlineStep=None, step=step["id"], **tool)])
    return [a_workflow(agent, {**step, "toolOnly": True})]


@pytest.mark.parametrize(
    "step",
    [
        agent_step(),
        response_step("tell"),
        {"id": "ask", "kind": "Approval", "approval": {"title": "Well?"}},
        {"id": "other", "kind": "Delegate", "delegate": {"agentRef": {"name": "helper"}}},
    ],
    ids=["Agent", "Response", "Approval", "Delegate"],
)
def test_steps_that_run_or_ask_or_end_are_no_tools(step: Raw) -> None:
    step = {**step, "id": "as-tool"}
    assert about(f"of kind {step['kind']}", *with_step_tool(step))
    assert not about("of kind", *with_step_tool(call_step("as-tool")))


def test_a_run_of_an_agent_alone_whose_tools_need_steps_is_refused() -> None:
    run = a_run(workflowRef=None, agentRef={"name": "helper"})
    needs_steps = an_agent(tools=[a_tool(inlineStep=None, step="fetch")])
    assert about("step", needs_steps, run)
    assert problems(an_agent(), run) == []


def test_the_tool_of_a_shared_agent_is_resolved_in_the_calling_workflow() -> None:
    agent = an_agent(tools=[a_tool(inlineStep=None, step="fetch")])
    tool_step = {**call_step("fetch"), "toolOnly": True}
    assert about("names the step fetch", agent, a_workflow(ref_step("helper")))
    assert not about("names the step fetch", agent, a_workflow(ref_step("helper"), tool_step))


@pytest.mark.parametrize("name", ["a__b", "read_tool_result", "update_plan", "start_work_task"])
def test_a_tool_is_not_named_as_the_engines_or_a_servers_are(name: str) -> None:
    assert about("a tool's name cannot contain __", an_agent(tools=[a_tool(name=name)]))
    assert not about("a tool's name", an_agent(tools=[a_tool(name="start_work")]))


def test_a_tool_has_a_description_of_its_own_or_of_its_step() -> None:
    assert about("description", an_agent(tools=[a_tool(description=None)]))
    step = call_step("fetch")
    assert about("no description", *with_step_tool(step, description=None))
    assert not about("description", *with_step_tool({**step, "description": "Fetches."}, description=None))
