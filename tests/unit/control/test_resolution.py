"""Plans: what they hold, and every reason for which there is none."""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilothouse_api import structs
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import Agent, AgentRun, Workflow
from pilothouse_api.v1alpha1.base import Model
from pilothouse_control import resolution
from pilothouse_control.resolution import NotResolved, resolve_plan
from pilothouse_control.standalone import step_id_of
from pilothouse_control.validation import Sources, validate
from pilothouse_control.world import Ceilings, ConfigMap, Platform, Reference, References, needed_references
from unit.control.manifests import (
    Raw,
    a_config_map,
    a_model,
    a_run,
    a_tool,
    a_workflow,
    agent_step,
    an_agent,
    an_mcp_artifact,
    an_mcp_server,
    an_object,
    autonomous,
    call_step,
    completion,
    properties,
    ref_step,
    with_mcp,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PLATFORM = Platform(runner_image="runner:1", durable_journal=True)


def nested(depth: int) -> Raw:
    value: Raw = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def known(*objects: Raw, platform: Platform = PLATFORM) -> References:
    workflows = [Workflow.model_validate(raw) for raw in objects if raw["kind"] == "Workflow"]
    agents = [Agent.model_validate(raw) for raw in objects if raw["kind"] == "Agent"]
    config_maps = [ConfigMap.of_raw(raw) for raw in objects if raw["kind"] == "ConfigMap"]
    return References(
        workflows={workflow.metadata.name: workflow for workflow in workflows},
        agents={agent.metadata.name: agent for agent in agents},
        config_maps={config_map.name: config_map for config_map in config_maps},
        platform=platform,
    )


def resolve(run: Raw, *objects: Raw, platform: Platform = PLATFORM) -> Plan | NotResolved:
    return resolve_plan(AgentRun.model_validate(run), known(*objects, platform=platform))


def plan_of(run: Raw, *objects: Raw, platform: Platform = PLATFORM) -> Plan:
    outcome = resolve(run, *objects, platform=platform)
    assert isinstance(outcome, Plan), outcome
    return outcome


def test_a_plan_survives_being_stored_and_read() -> None:
    plan = plan_of(a_run(input={"a": "é"}), a_workflow())
    text = plan.encode()
    assert Plan.decode(text, text_digest(text)).encode() == text
    assert json.loads(text)["format"] == 1


@pytest.mark.parametrize("name", ["incident-desk", "refund-desk", "review-router", "supervised", "support-triage"])
def test_a_runner_reads_of_a_plan_what_was_validated(name: str) -> None:
    texts = [file.read_text() for file in sorted((EXAMPLES / name).glob("*.yaml"))]
    raws = [raw for text in texts for raw in yaml.safe_load_all(text) if raw]
    objects = [raw for raw in raws if raw.get("kind") in ("Workflow", "Agent", "ConfigMap")]
    for raw in objects:
        raw["metadata"] = {"uid": f"uid-{raw['metadata']['name']}", "generation": 1, **raw["metadata"]}
    flow = next(raw["metadata"]["name"] for raw in objects if raw["kind"] == "Workflow")
    (run,) = [raw for raw in raws if raw.get("kind") == "AgentRun"]
    run = a_run(**{**run["spec"], "workflowRef": {"name": flow}})
    text = plan_of(run, *objects).encode()

    assert_same(structs.Plan.decode(text, text_digest(text)), Plan.decode(text))


def assert_same(struct: Any, model: Any) -> None:
    """Compare a Struct with the model of its name, field by field, all the way down."""
    if isinstance(model, Model):
        assert type(struct).__name__ == type(model).__name__
        assert list(struct.__struct_fields__) == list(type(model).model_fields)
        for name in type(model).model_fields:
            assert_same(getattr(struct, name), getattr(model, name))
    elif isinstance(model, dict | list):
        assert len(struct) == len(model)
        for place in model if isinstance(model, dict) else range(len(model)):
            assert_same(struct[place], model[place])
    else:
        assert (type(struct), struct) == (type(model), model)


@pytest.mark.parametrize("form", [Plan, structs.Plan])
@pytest.mark.parametrize(
    ("change", "want"),
    [
        (lambda raw: raw.update(more=1), "more"),
        (lambda raw: raw["spec"]["steps"][0].update(more=1), "more"),
        (lambda raw: raw["run"].pop("uid"), "uid"),
        (lambda raw: raw.update(workflow=[]), "workflow"),
        (lambda raw: raw.update(format=2), "not of the format 1"),
        (lambda raw: raw.pop("format"), "not of the format 1"),
    ],
)
def test_a_plan_that_another_version_has_written_is_not_read(
    change: Callable[[Raw], Any], want: str, form: Any
) -> None:
    raw = json.loads(plan_of(a_run(), a_workflow()).encode())
    change(raw)
    text = json.dumps(raw)
    with pytest.raises(ValueError, match=want):
        form.decode(text, text_digest(text))


@pytest.mark.parametrize("form", [Plan, structs.Plan])
def test_a_plan_of_another_digest_is_not_read(form: Any) -> None:
    with pytest.raises(ValueError, match="but the run's status says abc"):
        form.decode(plan_of(a_run(), a_workflow()).encode(), "abc")


def test_two_resolutions_of_the_same_objects_are_the_same_bytes() -> None:
    objects = [a_workflow(ref_step("b"), ref_step("a", "again")), an_agent("a"), an_agent("b")]
    assert plan_of(a_run(), *objects).encode() == plan_of(a_run(), *reversed(objects)).encode()


def test_identity_and_origins_are_those_of_the_objects() -> None:
    run = a_run()
    run["metadata"] |= {"namespace": "team", "uid": "u1", "labels": {"team": "a"}}
    workflow = a_workflow()
    workflow["metadata"] |= {"uid": "u2", "generation": 7}
    plan = plan_of(run, workflow)
    assert (plan.run.namespace, plan.run.name, plan.run.uid, plan.run.labels) == (
        "team",
        "triage-1",
        "u1",
        {"team": "a"},
    )
    assert (plan.workflow.name, plan.workflow.uid, plan.workflow.generation) == ("triage", "u2", 7)


def test_texts_are_resolved_and_their_digests_kept() -> None:
    agent = an_agent(
        steering={"artifact": "tone"},
        skills=[{"name": "s", "artifact": "refunds@1"}],
        model=a_model(script={"configMapKeyRef": {"name": "script", "key": "a.yaml"}}),
        guardrails={
            "input": [{"check": "Artifact", "artifact": {"ref": "polite@1"}}],
            "output": [{"check": "LlmJudge", "llmJudge": {"criteria": {"artifact": "promises@1"}}}],
        },
    )
    plan = plan_of(
        a_run(),
        a_workflow(ref_step("helper")),
        agent,
        a_config_map("tone", "steering", **{"2": "old", "10": "new", "notes": "x"}),
        a_config_map("refunds", "skill", **{"1": "refund"}),
        a_config_map("script", **{"a.yaml": "turns: []"}),
        a_config_map("polite", "guardrail", **{"1": "- {check: SecretMask}"}),
        a_config_map("promises", "prompt", **{"1": "promise nothing"}),
    )
    assert {key: (text.text, text.resolved) for key, text in plan.texts.items()} == {
        "artifact:tone": ("new", "artifact:tone@10"),
        "artifact:refunds@1": ("refund", "artifact:refunds@1"),
        "configmap:script/a.yaml": ("turns: []", "configmap:script/a.yaml"),
        "artifact:polite@1": ("- {check: SecretMask}", "artifact:polite@1"),
        "artifact:promises@1": ("promise nothing", "artifact:promises@1"),
    }
    assert all(text.digest == text_digest(text.text) for text in plan.texts.values())
    steering = plan.agents["helper"].spec.steering
    assert steering is not None
    assert plan.text(steering) == "new"


def test_secrets_are_named_once_and_sorted() -> None:
    header = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "crm", "key": "token"}}}
    model = a_model(
        apiKeySecretRef={"name": "llm", "key": "a"},
        fallbacks=[{"name": "a/b", "apiKeySecretRef": {"name": "llm", "key": "b"}}],
    )
    inline = {"kind": "APICall", "apiCall": {"url": "https://x", "headers": [header]}}
    workflow = a_workflow(
        agent_step(model=model, tools=[a_tool(inlineStep=inline)]), call_step(headers=[header], routes={"error": "end"})
    )
    assert plan_of(a_run(), workflow).secrets == ["crm/token", "llm/a", "llm/b"]


def test_secrets_and_audiences_of_mcp_servers_are_planned() -> None:
    header = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "token"}}}
    token = {"serviceAccountToken": {"audience": "gateway"}}
    step = {
        "id": "file-it",
        "kind": "MCP",
        "mcp": {"server": an_mcp_server(name="files", auth=token), "tool": "put"},
    }
    workflow = a_workflow(ref_step("helper", resolved="file-it"), step)
    plan = plan_of(a_run(), workflow, with_mcp(an_mcp_server(headers=[header]), an_mcp_server(name="b", auth=token)))
    assert plan.secrets == ["gh/token"]
    assert plan.audiences == ["gateway"]


def test_a_server_that_is_an_artifact_stands_in_the_plan_as_its_text_says() -> None:
    text = """
    transport: StreamableHTTP
    url: https://gh.example/mcp
    headers: [{name: Authorization, valueFrom: {secretKeyRef: {name: gh, key: token}}}]
    """
    agent = with_mcp({"name": "gh", "artifact": "gh-server@1", "required": False})
    step = {"id": "ask", "kind": "MCP", "mcp": {"server": {"name": "x", "artifact": "gh-server@1"}, "tool": "put"}}
    plan = plan_of(a_run(), a_workflow(ref_step("helper", resolved="ask"), step), agent, an_mcp_artifact(text))
    server = plan.agents["helper"].spec.mcp_servers[0]
    assert (server.name, server.transport, server.url) == ("gh", "StreamableHTTP", "https://gh.example/mcp")
    assert (server.required, server.artifact) == (False, None)
    call = plan.spec.steps[1].mcp
    assert call is not None and (call.server.name, call.server.url) == ("x", "https://gh.example/mcp")
    assert plan.secrets == ["gh/token"]
    assert plan.texts["artifact:gh-server@1"].digest == text_digest(text)
    assert Plan.decode(plan.encode()) == plan


def test_a_server_that_is_an_artifact_is_waited_for() -> None:
    outcome = resolve(a_run(), a_workflow(ref_step("helper")), with_mcp({"name": "gh", "artifact": "gh-server@1"}))
    assert isinstance(outcome, NotResolved)
    assert (outcome.reason, outcome.is_waiting) == ("ArtifactNotFound", True)


def test_input_has_the_defaults_of_keys_that_are_left_out() -> None:
    workflow = a_workflow(input={**properties("a", "b"), "defaults": {"a": 1, "b": {"c": 2}}})
    assert plan_of(a_run(input={"b": 3}), workflow).input == {"a": 1, "b": 3}


def test_overrides_win_over_the_template() -> None:
    template = {
        "activeDeadlineSeconds": 900,
        "maxAttempts": 5,
        "resources": {"limits": {"cpu": "1"}},
        "image": "mine:2",
        "env": [{"name": "A", "value": "b"}],
        "labels": {"team": "a"},
    }
    overrides = {"activeDeadlineSeconds": 600, "maxAttempts": 1, "resources": {"limits": {"cpu": "2"}}}
    plain = plan_of(a_run(), a_workflow(runTemplate=template))
    assert (plain.active_deadline_seconds, plain.max_attempts) == (900, 5)
    plan = plan_of(a_run(overrides=overrides), a_workflow(runTemplate=template))
    assert (plan.active_deadline_seconds, plan.max_attempts) == (600, 1)
    assert plan.pod == {
        "image": "mine:2",
        "serviceAccountName": "prun",
        "resources": {"limits": {"cpu": "2"}},
        "env": [{"name": "A", "value": "b"}],
        "envFrom": [],
        "nodeSelector": {},
        "tolerations": [],
        "runtimeClassName": None,
        "labels": {"team": "a"},
    }


def test_the_platforms_image_is_the_default() -> None:
    assert plan_of(a_run(), a_workflow()).pod["image"] == "runner:1"


def test_limits_and_control_of_a_live_run_do_not_change_its_plan() -> None:
    live = a_run(limits={"maxIterations": 3}, control={"mode": "Pause"})
    assert plan_of(live, a_workflow()).encode() == plan_of(a_run(), a_workflow()).encode()


CEILINGS = Ceilings(tool_timeout_seconds=60, pause_seconds=100, token_budget=1000, cost_budget_usd="0.5")
PRICE = {"inputPerMillionUSD": "1", "outputPerMillionUSD": "2"}


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        ({}, {"toolTimeoutSeconds": 60, "pauseSeconds": 100}),
        ({"toolTimeoutSeconds": 30, "pauseSeconds": 5}, {"toolTimeoutSeconds": 30, "pauseSeconds": 5}),
        (
            {"tokenBudget": 2000, "costBudgetUSD": "1.5"},
            {"toolTimeoutSeconds": 60, "pauseSeconds": 100, "tokenBudget": 1000, "costBudgetUSD": "0.5"},
        ),
        (
            {"tokenBudget": 10, "costBudgetUSD": "0.25"},
            {"toolTimeoutSeconds": 60, "pauseSeconds": 100, "tokenBudget": 10, "costBudgetUSD": "0.25"},
        ),
    ],
)
def test_ceilings_cap_the_limits_of_agents_inline_and_by_name(limits: Raw, want: Raw) -> None:
    platform = replace(PLATFORM, ceilings=CEILINGS)
    changes: dict[str, Any] = {"limits": limits, "model": a_model(price=PRICE)}
    workflow = a_workflow(ref_step("helper"), agent_step("inline", **changes))
    plan = plan_of(a_run(), workflow, an_agent(**changes), platform=platform)
    inline = plan.step("inline").agent
    assert inline is not None
    assert plan.agents["helper"].spec.limits.to_raw() == want
    assert inline.limits.to_raw() == want


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        ({}, {"tokenBudget": 1000, "costBudgetUSD": "0.5"}),
        ({"tokenBudget": 5, "costBudgetUSD": "0.1"}, {"tokenBudget": 5, "costBudgetUSD": "0.1"}),
        ({"tokenBudget": 5000, "maxToolCalls": 3}, {"tokenBudget": 1000, "costBudgetUSD": "0.5", "maxToolCalls": 3}),
    ],
)
def test_ceilings_of_budgets_are_totals_of_every_run(limits: Raw, want: Raw) -> None:
    platform = replace(PLATFORM, ceilings=CEILINGS)
    plan = plan_of(a_run(), a_workflow(agent_step(model=a_model(price=PRICE)), limits=limits), platform=platform)
    assert plan.spec.limits.to_raw() == want


def test_ceilings_of_what_a_live_run_decides_go_into_the_plan() -> None:
    ceilings = Ceilings(tool_timeout_seconds=60, pause_seconds=100, approval_expires_seconds=600)
    plan = plan_of(a_run(), a_workflow(agent_step()), platform=replace(PLATFORM, ceilings=ceilings))
    want = {"toolTimeoutSeconds": 60, "pauseSeconds": 100, "approvalExpiresSeconds": 600}
    assert plan.ceilings.to_raw() == want


def test_a_ceiling_of_tokens_needs_a_bound_of_each_reply() -> None:
    model = {"name": "scripted", "script": {"inline": "turns: []"}}
    platform = replace(PLATFORM, ceilings=Ceilings(token_budget=1000))
    outcome = resolve(a_run(), a_workflow(agent_step(model=model)), platform=platform)
    assert isinstance(outcome, NotResolved)
    assert (outcome.reason, outcome.is_waiting) == ("InvalidPlan", False)
    assert "maxOutputTokens" in outcome.message


def test_a_run_of_an_agent_is_a_workflow_of_one_step() -> None:
    agent = an_agent("web.researcher".replace(".", "-"), outcome={"enum": ["found", "nothing"]})
    plan = plan_of(a_run(workflowRef=None, agentRef={"name": "web-researcher"}), agent)
    assert [(step.id, step.kind, step.routes) for step in plan.spec.steps] == [
        ("web-researcher", "Agent", {"found": "end", "nothing": "end"})
    ]
    assert plan.workflow.name == "web-researcher"
    assert plan.agent_of(plan.spec.steps[0]).outcome.enum == ["found", "nothing"]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("helper", "helper"),
        ("web.researcher", "web-researcher"),
        ("7seas", "agent-7seas"),
        ("end", "agent-end"),
        ("default", "agent-default"),
        ("a" * 63, "a" * 63),
    ],
)
def test_the_name_of_an_agent_makes_a_legal_step_id(name: str, want: str) -> None:
    assert step_id_of(name) == want


HELPER = a_workflow(ref_step("helper"))
TONE = {"artifact": "tone@2"}

REFUSED: list[tuple[str, Raw, list[Raw], str, str, bool]] = [
    ("no workflow", a_run(), [], "WorkflowNotFound", "there is no Workflow triage", True),
    ("no agent", a_run(workflowRef=None, agentRef={"name": "a"}), [], "AgentNotFound", "there is no Agent a", True),
    ("no agent of a step", a_run(), [HELPER], "AgentNotFound", "there is no Agent helper", True),
    ("no artifact", a_run(), [HELPER, an_agent(steering=TONE)], "ArtifactNotFound", "no ConfigMap tone", True),
    (
        "no version",
        a_run(),
        [HELPER, an_agent(steering=TONE), a_config_map("tone", "steering", **{"1": "a"})],
        "ArtifactNotFound",
        "the artifact tone has no version 2, it has: 1",
        True,
    ),
    (
        "no version at all",
        a_run(),
        [HELPER, an_agent(steering={"artifact": "tone"}), a_config_map("tone", "steering", x="a")],
        "ArtifactNotFound",
        "it has: none",
        True,
    ),
    (
        "no artifact label",
        a_run(),
        [HELPER, an_agent(steering=TONE), a_config_map("tone", **{"2": "a"})],
        "InvalidPlan",
        "label it pilothouse.dev/artifact: prompt or steering",
        False,
    ),
    (
        "another type",
        a_run(),
        [HELPER, an_agent(steering=TONE), a_config_map("tone", "skill", **{"2": "a"})],
        "InvalidPlan",
        "of type skill",
        False,
    ),
    (
        "no config map",
        a_run(),
        [HELPER, an_agent(steering={"configMapKeyRef": {"name": "tone", "key": "a"}})],
        "ConfigMapNotFound",
        "there is no ConfigMap tone",
        True,
    ),
    (
        "no key",
        a_run(),
        [HELPER, an_agent(steering={"configMapKeyRef": {"name": "tone", "key": "a"}}), a_config_map("tone", b="x")],
        "ConfigMapNotFound",
        "has no key a, it has: b",
        True,
    ),
    (
        "an agent that validation refuses",
        a_run(),
        [HELPER, an_agent(tools=[a_tool(description=None)])],
        "InvalidPlan",
        "Agent helper: spec.tools[0].description: the tool lookup has no description",
        False,
    ),
    (
        "tools of an agent run",
        a_run(workflowRef=None, agentRef={"name": "helper"}),
        [an_agent(tools=[a_tool(inlineStep=None, step="fetch")])],
        "InvalidPlan",
        "the tool lookup is a step of a workflow",
        False,
    ),
    (
        "an input that does not fit",
        a_run(input={"n": "x"}),
        [a_workflow(input={"schema": {"properties": {"n": {"type": "integer"}}}})],
        "InputInvalid",
        'spec.input: n: "x" is not of type "integer"',
        False,
    ),
    ("a key of the engine", a_run(input={"_x": 1}), [a_workflow()], "InputInvalid", "spec.input._x: keys", False),
    ("no JSON", a_run(input={"x": "\ud800"}), [a_workflow()], "InputInvalid", "spec.input: it is no JSON", False),
    ("a deep input", a_run(input=nested(129)), [a_workflow()], "InputInvalid", "deeper than 128 levels", False),
    ("a very deep input", a_run(input=nested(900)), [a_workflow()], "InputInvalid", "deeper than 128 levels", False),
    (
        "a deep schema",
        a_run(),
        [a_workflow(input={"schema": {"default": nested(600)}})],
        "InvalidPlan",
        "Workflow triage cannot be written as JSON",
        False,
    ),
    ("a large input", a_run(input={"x": "y" * 262_144}), [a_workflow()], "InputTooLarge", "the limit is 262144", False),
    (
        "a large plan",
        a_run(),
        [a_workflow(*(agent_step(f"s{i}", steering={"inline": "x" * 16384}) for i in range(70)))],
        "PlanTooLarge",
        "the limit is 1000000",
        False,
    ),
]


@pytest.mark.parametrize(
    ("run", "objects", "reason", "message", "is_waiting"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_cannot_be_resolved_says_why(
    run: Raw, objects: list[Raw], reason: str, message: str, is_waiting: bool
) -> None:
    outcome = resolve(run, *objects)
    assert isinstance(outcome, NotResolved)
    assert (outcome.reason, outcome.is_waiting) == (reason, is_waiting), outcome
    assert message in outcome.message


def test_references_are_found_to_a_fixpoint() -> None:
    run = AgentRun.model_validate(a_run())
    workflow = a_workflow(
        ref_step("a"), {"id": "d", "kind": "Delegate", "delegate": {"workflowRef": {"name": "child"}}}
    )
    first = an_agent("a", steering={"artifact": "tone@1"}, tools=[a_tool(inlineStep=None, agentRef={"name": "b"})])
    second = an_agent("b", tools=[a_tool(inlineStep=None, agentRef={"name": "a"})])
    child = a_workflow(ref_step("not-needed"), name="child")
    script = an_object("Agent", "b", autonomous(model=a_model(script={"configMapKeyRef": {"name": "s", "key": "k"}})))
    of_run = {Reference("Workflow", "triage")}
    of_workflow = of_run | {Reference("Agent", "a"), Reference("Workflow", "child")}
    of_first = of_workflow | {Reference("ConfigMap", "tone"), Reference("Agent", "b")}
    assert needed_references(run, known()) == of_run
    assert needed_references(run, known(workflow)) == of_workflow
    assert needed_references(run, known(workflow, first, child)) == of_first
    assert needed_references(run, known(workflow, first, second, child)) == of_first
    assert needed_references(run, known(workflow, first, script)) == of_first | {Reference("ConfigMap", "s")}


def test_references_of_a_workflow_include_those_of_its_agents() -> None:
    workflow = Workflow.model_validate(a_workflow(ref_step("w")))
    agent = an_object("Agent", "w", completion(prompt={"artifact": "p@1"}))
    assert needed_references(workflow, known(agent)) == {Reference("Agent", "w"), Reference("ConfigMap", "p")}


# ---------------------------------------------------------------- what was judged before


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the workflows and agents of each judgement that is really made."""
    made: list[str] = []

    def counting(sources: Sources, **kwargs: Any) -> Any:
        made.append("judged")
        return validate(sources, **kwargs)

    monkeypatch.setattr(resolution, "_IN_ORDER", OrderedDict())
    monkeypatch.setattr(resolution, "validate", counting)
    return made


def test_runs_that_differ_in_name_and_input_alone_are_judged_once(judged: list[str]) -> None:
    objects = [a_workflow(ref_step("helper")), an_agent()]

    plans = [plan_of(a_run(f"r{n}", input={"ticket": n}), *objects) for n in range(3)]

    assert [plan.input for plan in plans] == [{"ticket": 0}, {"ticket": 1}, {"ticket": 2}]
    assert judged == ["judged"]


@pytest.mark.parametrize(
    "other",
    [
        {"run": a_run(overrides={"maxAttempts": 1})},
        {"workflow": a_workflow(ref_step("helper"), maxStepVisits=7)},
        {"agent": an_agent(limits={"maxIterations": 3})},
        {"config_map": a_config_map("tone", "steering", **{"1": "new words"})},
        {"platform": replace(PLATFORM, ceilings=Ceilings(pause_seconds=9))},
        {"platform": replace(PLATFORM, known_price=lambda endpoint: True)},
    ],
    ids=["run", "workflow", "agent", "text", "ceilings", "prices"],
)
def test_whatever_else_differs_is_judged_anew(judged: list[str], other: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "run": a_run(),
        "workflow": a_workflow(ref_step("helper")),
        "agent": an_agent(steering={"artifact": "tone"}),
        "config_map": a_config_map("tone", "steering", **{"1": "words"}),
        "platform": PLATFORM,
    }
    for objects in (usual, usual | other):
        platform = objects["platform"]
        plan_of(objects["run"], objects["workflow"], objects["agent"], objects["config_map"], platform=platform)

    assert judged == ["judged", "judged"]


def test_what_is_wrong_is_said_each_time_and_the_memory_is_bounded(
    judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "REMEMBERED_JUDGEMENTS", 2)
    wrong = a_workflow(agent_step(routes={"resolved": "nowhere"}))

    for name in ("r1", "r2"):
        assert isinstance(resolve(a_run(name), wrong), NotResolved)
    for seconds in (1, 2, 3):
        plan_of(a_run(overrides={"ttlSecondsAfterFinished": seconds}), a_workflow())

    assert len(judged) == 5
    assert len(resolution._IN_ORDER) == 2
