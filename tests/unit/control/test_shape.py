"""The shape of manifests: the sentences that people read where admission would refuse."""

from typing import Any

import pytest

from pilothouse_api.v1alpha1 import KINDS
from pilothouse_control.documents import parse_documents
from pilothouse_control.findings import Finding
from pilothouse_control.tree import walk_raw
from pilothouse_control.validation import Sources, as_document, validate
from pilothouse_control.validation.shape import REFINED_RULES
from unit.control.manifests import (
    Raw,
    a_run,
    a_supervisor,
    a_tool,
    a_workflow,
    agent_step,
    an_agent,
    an_object,
    call_step,
    completion,
)


def findings(raw: Raw) -> list[Finding]:
    return validate(Sources([as_document(raw)]), durable_journal=True)


def errors(raw: Raw) -> list[tuple[str, str]]:
    return [(f.check, f.sentence) for f in findings(raw) if f.is_error]


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (an_agent(limits={"maxIterations": 0}), "spec.limits.maxIterations: it is 0; the smallest value is 1"),
        (an_agent(limits={"maxIterations": 9999}), "spec.limits.maxIterations: it is 9999; the largest value is 1000"),
        (an_agent(limits={"maxIterations": "8"}), 'spec.limits.maxIterations: it is "8"; it must be a whole number'),
        (an_agent(limits={"maxIterations": 1.5}), "spec.limits.maxIterations: it is 1.5; it must be a whole number"),
        (
            an_agent(limits={"costBudgetUSD": 0.5}),
            'spec.limits.costBudgetUSD: it is 0.5; it must be text; quote it: "0.5"',
        ),
        (
            an_agent(limits={"costBudgetUSD": "1,50"}),
            'spec.limits.costBudgetUSD: it is "1,50"; it must be an amount of US dollars as text, such as "0.50"',
        ),
        (
            an_agent(lastIteration="Wrapup"),
            'spec.lastIteration: it is "Wrapup"; it must be WrapUp or Exit; did you mean WrapUp?',
        ),
        (an_agent(tools={}), "spec.tools: it is {}; it must be a list"),
        (an_agent(model={"script": {"inline": "x"}}), "spec.model.name: it is required and missing"),
        (
            an_agent(description="x" * 1025),
            "spec.description: it has 1025 characters; the limit is 1024; shorten it",
        ),
        (an_agent(skills=[{"name": "s", "inline": "x"}] * 33), "spec.skills: it has 33 entries; the limit is 32"),
        (
            a_workflow({**call_step("Fetch")}),
            'spec.steps[0].id: it is "Fetch"; it must be small letters, digits, - and _, beginning with a letter',
        ),
        (a_workflow(suspend="yes"), 'spec.suspend: it is "yes"; it must be true or false'),
        (
            a_workflow(runTemplate={"serviceAccountName": "default"}),
            'spec.runTemplate.serviceAccountName: it is "default"; it must be a name that begins with prun: '
            "by that the admission policies know a runner",
        ),
    ],
)
def test_a_value_that_the_models_refuse_is_described_with_value_and_limit(raw: Raw, want: str) -> None:
    assert ("Schema", want) in errors(raw)


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (
            an_agent(limits={"maxiterations": 3}),
            "spec.limits.maxiterations: DYM maxIterations?",
        ),
        (
            an_agent(limits={"max_iterations": 3}),
            "spec.limits.max_iterations: DYM maxIterations?",
        ),
        (
            a_workflow({**call_step(), "apicall": {}}),
            "spec.steps[0].apicall: DYM apiCall?",
        ),
        (a_run(zzz=1), "spec.zzz: there is no such field; the fields here are workflowRef, agentRef, input"),
        ({**a_run(), "speck": {}}, "speck: DYM spec?"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_one(raw: Raw, want: str) -> None:
    want = want.replace("DYM", "there is no such field; did you mean")
    assert any(check == "UnknownField" and sentence.startswith(want) for check, sentence in errors(raw))


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (an_agent(tools=[]), "spec.tools: mode: Autonomous needs tools"),
        (an_agent(limits={"tokenBudget": 9}, model={"name": "a/b"}), "spec.model: limits.tokenBudget needs"),
        (an_agent(steering={"inline": "a", "artifact": "b@1"}), "spec.steering: set exactly one of: inline"),
        (an_agent(outcome={"enum": ["error"]}), "spec.outcome.enum: outcome.enum cannot hold reserved exits"),
        (an_agent(outcome={"enum": ["yes"]}), "spec.outcome.enum: YAML turns this word into a boolean"),
        (
            an_object("Agent", "x", completion(steering={"inline": "a"})),
            "spec: mode: Completion takes system",
        ),
        (a_workflow({**call_step(), "kind": "Router"}), "spec.steps[0]: set only the field that kind names"),
        (a_workflow({**call_step("end")}), "spec.steps[0].id: end and default cannot be ids"),
        (a_workflow({**call_step(), "toolOnly": True}), "spec.steps: every step is toolOnly"),
        (a_workflow(trigger={"type": "Schedule"}), "spec.trigger: set schedule exactly when type is Schedule"),
        (
            a_workflow(runTemplate={"labels": {"pilothouse.dev/run": "x"}}),
            "spec.runTemplate.labels: labels",
        ),
        (a_run(agentRef={"name": "a"}), "spec: set exactly one of: workflowRef, agentRef"),
        (
            a_run(control={"steer": {"a": {"message": " "}}}),
            "spec.control.steer.a.message: a steer",
        ),
        (a_supervisor(rules=[]), "spec: a supervisor needs rules, a judge, or both"),
    ],
)
def test_a_rule_of_admission_is_judged_here_too(raw: Raw, want: str) -> None:
    assert any(check == "Rule" and sentence.startswith(want) for check, sentence in errors(raw)), errors(raw)


def test_every_rule_that_looks_at_one_state_can_be_judged() -> None:
    broken = [f for kind in SAMPLES for f in findings(SAMPLES[kind]) if "the rule cannot be judged" in f.what]
    assert broken == []
    assert set(SAMPLES) == set(KINDS)


SAMPLES: dict[str, Raw] = {
    "Agent": an_agent(
        model={"name": "openai/x", "maxOutputTokens": 5, "fallbacks": [{"name": "a/b"}]},
        skills=[{"name": "s", "inline": "x"}],
        outcome={"enum": ["done"]},
        limits={"tokenBudget": 5},
        policy=[{"name": "p", "at": "ToolCall", "cel": "true", "verdict": "Deny"}],
        hooks=[{"event": "OnError", "action": "Log"}],
        guardrails={"input": [{"check": "MaxChars", "maxChars": {"limit": 5}}]},
        mcpServers=[{"name": "m", "transport": "Stdio", "command": ["a"]}],
    ),
    "Workflow": a_workflow(
        agent_step(),
        call_step(routes={"default": "end"}, headers=[{"name": "A", "value": "b"}], retry={"causes": ["Error"]}),
        {"id": "r", "kind": "Router", "router": {"match": "a"}},
        {"id": "res", "kind": "Resource", "resource": {"operation": "List", "apiVersion": "v1", "kind": "Pod"}},
        {"id": "d", "kind": "Delegate", "delegate": {"agentRef": {"name": "x"}}},
        runTemplate={"labels": {"a": "b"}},
        trigger={"type": "Manual"},
    ),
    "AgentRun": a_run(control={"steer": {"a": {"message": "x"}}, "approvals": {"t1-0-aaaaaaaa": {"decision": "Deny"}}}),
    "Supervisor": a_supervisor(
        selector={"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        judge={"model": "m", "criteria": {"inline": "x"}},
    ),
}


def test_messages_of_refined_rules_exist_in_the_models() -> None:
    messages = {
        rule.message
        for kind, raw in SAMPLES.items()
        for _, model, _ in walk_raw(KINDS[kind], raw)
        for rule in getattr(model, "RULES", ())
    }
    assert messages >= REFINED_RULES


def test_a_key_of_a_list_map_stands_once() -> None:
    raw = an_agent(tools=[a_tool(), a_tool(name="other"), a_tool()])
    want = (
        "Duplicate",
        'spec.tools[2]: another entry of the list has the same name "lookup"; rename or remove one of them',
    )
    assert want in errors(raw)


def test_a_value_of_a_set_stands_once() -> None:
    raw = an_agent(outcome={"enum": ["done", "done"]})
    assert any(check == "Duplicate" for check, _ in errors(raw))


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        ({}, "metadata.name: it is required and missing (or metadata.generateName, for kubectl create)"),
        ({"name": "A"}, 'metadata.name: "A" is no DNS label'),
        ({"name": "a\n"}, 'metadata.name: "a\\n" is no DNS label'),
        ({"name": "a" * 59}, "metadata"),
        ({"generateName": "a" * 54}, "metadata.generateName"),
        ({"generateName": "a_"}, "metadata.generateName"),
    ],
)
def test_a_run_needs_a_legal_name(metadata: dict[str, Any], want: str) -> None:
    sentences = [sentence for _, sentence in errors({**a_run(), "metadata": metadata})]
    assert any(want in sentence or sentence.startswith("the name of an AgentRun") for sentence in sentences), sentences


@pytest.mark.parametrize("metadata", [{"generateName": "triage-"}, {"name": "a" * 58}])
def test_a_legal_name_of_a_run_passes(metadata: dict[str, Any]) -> None:
    assert errors({**a_run(), "metadata": metadata}) == []


def test_nulls_are_left_out_as_the_api_server_does() -> None:
    raw = an_agent(retry=None, limits={"tokenBudget": None})
    raw["metadata"]["creationTimestamp"] = None
    assert findings(raw) == []


def test_a_status_in_a_manifest_is_not_judged() -> None:
    assert findings({**an_agent(), "status": {"anything": 1}}) == []


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        ({**an_agent(), "kind": "Agnet"}, "kind: Agnet is no kind of pilothouse.dev/v1alpha1; did you mean Agent?"),
        ({**an_agent(), "apiVersion": "pilothouse.dev/v1"}, "apiVersion: it is"),
        ({"kind": "Agent", "metadata": {"name": "a"}}, "apiVersion: it is required and missing"),
        ({"apiVersion": "pilothouse.dev/v1alpha1"}, "kind: a missing kind"),
    ],
)
def test_an_object_that_wants_to_be_ours_is_named(raw: Raw, want: str) -> None:
    assert any(sentence.startswith(want) for _, sentence in errors(raw)), errors(raw)


@pytest.mark.parametrize(
    "raw", [{"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "agents.example/v1", "kind": "Agent", "spec": 1}, {}]
)
def test_objects_of_others_are_left_alone(raw: Raw) -> None:
    assert findings(raw) == []


def test_two_objects_of_one_name_are_refused() -> None:
    found = validate(Sources([as_document(an_agent()), as_document(an_agent())]), durable_journal=True)
    assert [f.check for f in found] == ["ObjectRepeated"]


def test_a_boolean_of_yaml_is_explained_where_it_stands() -> None:
    text = """apiVersion: pilothouse.dev/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  steps:
    - id: choose
      kind: Router
      router: {match: answer}
      routes:
        yes: end
        other: no
"""
    found = validate(Sources(parse_documents(text, "w.yaml")), durable_journal=True)
    assert [(f.line, f.column, f.field, f.what) for f in found if f.is_error] == [
        (10, 9, "spec.steps[0].routes.true", "YAML reads the key yes as true"),
        (11, 9, "spec.steps[0].routes.other", "YAML reads no as false, and this must be text"),
    ]


def test_an_artifact_has_a_known_type_and_versions() -> None:
    raw = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tone", "labels": {"pilothouse.dev/artifact": "stering"}},
        "data": {"1": "a", "v2": "b"},
    }
    assert [f.sentence for f in findings(raw)] == [
        'metadata.labels["pilothouse.dev/artifact"]: stering is no type of an artifact; did you mean steering?',
        "data.v2: v2 is no version: the keys of an artifact are whole numbers from 1; rename it",
    ]
