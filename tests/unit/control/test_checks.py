"""Every check of the table: one manifest that it finds something in, and one that it lets pass."""

from dataclasses import dataclass
from typing import Any

import pytest

from pilothouse_control.findings import Finding
from pilothouse_control.validation import Sources, as_document, validate
from pilothouse_control.validation.registry import CHECKS
from pilothouse_control.world import References
from unit.control.manifests import (
    ROUTES,
    Raw,
    a_call,
    a_config_map,
    a_model,
    a_run,
    a_stdio_server,
    a_supervisor,
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
    response_step,
    with_mcp,
)


@dataclass(frozen=True)
class Row:
    """`bad` objects give the finding at `field`; `good` ones, as near to them as possible, do not."""

    check: str
    bad: list[Raw]
    good: list[Raw]
    field: str
    says: str = ""
    is_complete: bool = False
    options: dict[str, Any] | None = None


def findings_of(objects: list[Raw], is_complete: bool = False, **options: Any) -> list[Finding]:
    known = References(supervisors=())
    sources = Sources([as_document(raw) for raw in objects], known, is_complete=is_complete)
    return validate(sources, **{"durable_journal": True, **options})


def env(**entry: Any) -> Raw:
    return a_workflow(runTemplate={"env": [entry]})


def inline_resource(operation: str, **fields: Any) -> Raw:
    resource = {"operation": operation, "apiVersion": "v1", "kind": "ConfigMap", **fields}
    return {"kind": "Resource", "resource": resource}


def resource_step(operation: str, **fields: Any) -> Raw:
    return {"id": "res", **inline_resource(operation, **fields)}


def a_router(cel: str, **routes: str) -> Raw:
    router = {"conditions": [{"cel": cel, "signal": "big"}]}
    return {"id": "choose", "kind": "Router", "router": router, "routes": {"big": "end", **routes}}


def a_delegate(agent: str, **changes: Any) -> Raw:
    return a_tool(inlineStep=None, agentRef={"name": agent}, **changes)


def delegating(**ref: str) -> Raw:
    [(field, name)] = ref.items()
    return {"id": "ask", "kind": "Delegate", "delegate": {field: {"name": name}}}


def unbounded(name: str) -> Raw:
    model = {name: value for name, value in a_model().items() if name != "maxOutputTokens"}
    return an_agent(name, model=model)


def notifying(*steps: Raw, step: str = "page") -> Raw:
    return a_workflow(agent_step(), *steps, hooks=[{"event": "OnError", "action": "Notify", "notify": {"step": step}}])


def gated_by(ref: str) -> Raw:
    return an_agent(guardrails={"output": [{"check": "Artifact", "artifact": {"ref": ref}}]})


def a_schedule(cron: str = "0 7 * * 1-5", zone: str = "Europe/Berlin") -> Raw:
    return a_workflow(trigger={"type": "Schedule", "schedule": {"cron": cron, "timeZone": zone}})


def with_tool_step(tool_only_step: Raw, **tool: Any) -> list[Raw]:
    agent = an_agent(tools=[a_tool(inlineStep=None, step="fetch", **tool)])
    return [agent, a_workflow(ref_step("helper"), {**tool_only_step, "toolOnly": True})]


def an_mcp_step(server: Raw, **params: Any) -> Raw:
    return {"id": "ask", "kind": "MCP", "mcp": {"server": server, "tool": "search", **params}}


def from_tool(tool: str) -> Raw:
    return response_step(path=f"gh__{tool}_result")


A_WRITER = a_tool(name="g", inlineStep=None, writesContext=True, mcp={"server": "gh", "allow": ["search"]})
WRITES_ANY = {**A_WRITER, "mcp": {"server": "gh", "allow": ["*"]}}
NAMED = {"name": "gh", "artifact": "gh-server@1"}


def an_inline_mcp(**params: Any) -> Raw:
    return {"kind": "MCP", "mcp": an_mcp_step(an_mcp_server(), **params)["mcp"]}


def an_audience(audience: str) -> Raw:
    return {"serviceAccountToken": {"audience": audience}}


A_HOOK = "[{event: AfterTool, action: Notify, notify: {step: page}}]"
DENIES = '[{{check: RegexDeny, regexDeny: {{patterns: ["{}"]}}}}]'
SMALL = properties("ticket", additionalProperties=False)
CALLS_ONE = {"id": "page", "kind": "APICall", "toolOnly": True, "apiCall": {"url": "https://x/{{ step }}"}}
PRICE = {"inputPerMillionUSD": "1", "outputPerMillionUSD": "2"}
COST = {"costBudgetUSD": "0.50"}
POLICY = {"name": "p", "at": "ToolCall", "verdict": "Deny"}
OFTEN = {"name": "often", "when": "ToolRepeated"}
WATCHED = a_workflow(supervisorRefs=[{"name": "careful"}])


def watched_by(rule: Raw) -> Raw:
    return a_supervisor(rules=[rule])


def an_allowing_workflow(*allow: str) -> Raw:
    agent = with_mcp(an_mcp_server(), allow=list(allow))["spec"]
    step = {"id": "work", "kind": "Agent", "agent": agent, "routes": ROUTES}
    return a_workflow(step, supervisorRefs=[{"name": "careful"}])


NO_BOUND = {"name": "scripted", "script": {"inline": "turns: []"}}
FALLBACK = {"name": "openai/small", "apiBase": "http://llm:4000/v1"}

ROWS = [
    # ---- of any spec
    Row(
        "BackgroundWithoutAgent",
        [an_agent(tools=[a_tool(background=True)])],
        [an_agent(tools=[a_delegate("b", background=True)])],
        "spec.tools[0].background",
        "only an agentRef is a run of its own",
    ),
    Row(
        "DelegateTimeout",
        [an_agent(tools=[a_delegate("b", timeoutSeconds=5)])],
        [an_agent(tools=[a_tool(timeoutSeconds=5)])],
        "spec.tools[0].timeoutSeconds",
        "timeoutSeconds ends no child",
    ),
    Row(
        "TextNotFound",
        [an_agent(steering={"artifact": "tone@2"}), a_config_map("tone", "steering", **{"1": "a"})],
        [an_agent(steering={"artifact": "tone@1"}), a_config_map("tone", "steering", **{"1": "a"})],
        "spec.steering",
        "no version 2, it has: 1",
    ),
    Row(
        "TextNotFound",
        [an_agent(steering={"configMapKeyRef": {"name": "tone", "key": "b"}}), a_config_map("tone", a="x")],
        [an_agent(steering={"configMapKeyRef": {"name": "tone", "key": "a"}}), a_config_map("tone", a="x")],
        "spec.steering",
        "no key b, it has: a",
    ),
    Row(
        "TextElsewhere",
        [an_agent(steering={"artifact": "tone@1"})],
        [an_agent(steering={"artifact": "tone@1"}), a_config_map("tone", "steering", **{"1": "a"})],
        "spec.steering",
        "the ConfigMap tone is not among what was given",
    ),
    Row(
        "ArtifactType",
        [an_agent(steering={"artifact": "tone@1"}), a_config_map("tone", "skill", **{"1": "a"})],
        [an_agent(steering={"artifact": "tone@1"}), a_config_map("tone", "prompt", **{"1": "a"})],
        "spec.steering",
        "of type skill; this field takes prompt or steering",
    ),
    Row(
        "ArtifactType",
        [an_agent(model=a_model(script={"artifact": "script@1"}))],
        [an_agent(model=a_model(script={"configMapKeyRef": {"name": "script", "key": "a"}}))],
        "spec.model.script",
        "no artifact",
    ),
    Row(
        "ArtifactUnpinned",
        [an_agent(steering={"artifact": "tone"})],
        [an_agent(steering={"artifact": "tone@1"})],
        "spec.steering.artifact",
    ),
    Row(
        "TemplateSyntax",
        [a_workflow(call_step(url="https://x/{{ a + b }}"))],
        [a_workflow(call_step(url="https://x/{{ a.0.b-c }}"))],
        "spec.steps[0].apiCall.url",
        "{{ a + b }} can never resolve",
    ),
    Row(
        "TemplateUnclosed",
        [a_workflow(call_step(url="https://x/{{ a }"))],
        [a_workflow(call_step(url="https://x/{{ a }}"))],
        "spec.steps[0].apiCall.url",
    ),
    Row(
        "PathSyntax",
        [a_workflow(agent_step(), response_step(path="work_result..x"))],
        [a_workflow(agent_step(), response_step(path="work_result.0.x"))],
        "spec.steps[1].response.mapping.answer",
    ),
    Row(
        "UrlForbidden",
        [a_workflow(call_step(url="http://169.254.169.254/latest"))],
        [a_workflow(call_step(url="http://10.0.0.1/latest"))],
        "spec.steps[0].apiCall.url",
        "metadata",
    ),
    Row(
        "UrlForbidden",
        [an_agent(model=a_model(apiBase="llm:4000/v1"))],
        [an_agent(model=a_model(apiBase="http://llm:4000/v1"))],
        "spec.model.apiBase",
    ),
    Row(
        "SchemaInvalid",
        [an_agent(outcome={"schema": {"type": "objct"}})],
        [an_agent(outcome={"schema": {"type": "object"}})],
        "spec.outcome.schema",
    ),
    Row(
        "SchemaInvalid",
        [a_workflow(input={"schema": {"$ref": "http://127.0.0.1/x"}})],
        [a_workflow(input={"schema": {"$ref": "#"}})],
        "spec.input.schema",
    ),
    Row(
        "ParametersNotAnObject",
        [an_agent(tools=[a_tool(parameters={"type": "array"})])],
        [an_agent(tools=[a_tool(parameters={"type": "object"})])],
        "spec.tools[0].parameters.type",
    ),
    Row(
        "PatternInvalid",
        [an_agent(guardrails={"output": [{"check": "RegexDeny", "regexDeny": {"patterns": ["(?=a)"]}}]})],
        [an_agent(guardrails={"output": [{"check": "RegexDeny", "regexDeny": {"patterns": ["(?i)a+$"]}}]})],
        "spec.guardrails.output[0].regexDeny.patterns[0]",
        "RE2",
    ),
    Row(
        "PolicyExpressionInvalid",
        [an_agent(policy=[{**POLICY, "cel": "tol == 'a'"}])],
        [an_agent(policy=[{**POLICY, "cel": "tool == 'a' && args.amount > 50 && now.getHours('UTC') < 7"}])],
        "spec.policy[0].cel",
        "tol",
    ),
    Row(
        "SupervisorExpressionInvalid",
        [a_supervisor(rules=[{"name": "x", "when": "Expression", "expression": {"cel": "rum.turn > 1"}}])],
        [a_supervisor(rules=[{"name": "x", "when": "Expression", "expression": {"cel": "run.turn > 1"}}])],
        "spec.rules[0].expression.cel",
    ),
    Row(
        "RouterExpressionInvalid",
        [a_workflow(a_router("a >"))],
        [a_workflow(a_router("a > 1"))],
        "spec.steps[0].router.conditions[0].cel",
    ),
    Row(
        "RetryInverted",
        [an_agent(retry={"backoffSeconds": 40})],
        [an_agent(retry={"backoffSeconds": 40, "maxBackoffSeconds": 60})],
        "spec.retry.backoffSeconds",
        "longer than maxBackoffSeconds (30)",
    ),
    Row(
        "RetryOfOnce",
        [a_workflow(call_step(method="POST", retry={"attempts": 2}))],
        [a_workflow({**call_step(method="POST", retry={"attempts": 2}), "effect": "Idempotent"})],
        "spec.steps[0].apiCall.retry",
    ),
    Row(
        "RetryOfOnce",
        [an_agent(tools=[a_tool(effect="Once", inlineStep={"kind": "APICall", "apiCall": a_call(retry={})})])],
        [an_agent(tools=[a_tool(inlineStep={"kind": "APICall", "apiCall": a_call(retry={})})])],
        "spec.tools[0].inlineStep.apiCall.retry",
    ),
    Row(
        "ReservedKey",
        [a_workflow(input={"defaults": {"_last_error": "x"}})],
        [a_workflow(input={"defaults": {"last_error": "x"}})],
        "spec.input.defaults._last_error",
    ),
    # ---- of agents
    Row(
        "ToolWithoutDescription",
        [an_agent(tools=[a_tool(description=None)])],
        [an_agent()],
        "spec.tools[0].description",
    ),
    Row(
        "ToolWithoutDescription",
        [a_workflow(agent_step(tools=[a_tool(description=None)]))],
        [a_workflow(agent_step())],
        "spec.steps[0].agent.tools[0].description",
    ),
    Row(
        "AgentReachesItself",
        [
            an_agent("a", tools=[a_tool(inlineStep=None, agentRef={"name": "b"})]),
            an_agent("b", tools=[a_tool(inlineStep=None, agentRef={"name": "a"})]),
        ],
        [an_agent("a", tools=[a_tool(inlineStep=None, agentRef={"name": "b"})]), an_agent("b")],
        "spec.tools[0].agentRef",
        "a → b → a",
    ),
    Row(
        "ToolAgentNotFound",
        [an_agent(tools=[a_tool(inlineStep=None, agentRef={"name": "serch"})]), an_agent("search")],
        [an_agent(tools=[a_tool(inlineStep=None, agentRef={"name": "search"})]), an_agent("search")],
        "spec.tools[0].agentRef.name",
        "did you mean search?",
        is_complete=True,
    ),
    # ---- of MCP servers
    *(
        Row(
            "McpArtifactInvalid",
            [with_mcp(NAMED), an_mcp_artifact(text)],
            [with_mcp(NAMED), an_mcp_artifact("{transport: StreamableHTTP, url: 'https://gh/mcp', headers: []}")],
            "spec.mcpServers[0].artifact",
            says,
        )
        for text, says in (
            ("- a", "it is list, and an object with transport"),
            ("{name: gh, transport: Stdio, command: [a]}", "it has 'name'"),
            ("{transport: Stdio}", "transport: Stdio needs command"),
            ("{transport: Carrier}", "transport: Input should be"),
            ("{transport: StreamableHTTP, url: 'http://169.254.169.254/mcp'}", "metadata address"),
            ("{transport: Stdio, command: &a [b], auth: *a}", "aliases"),
            ("{transport: StreamableHTTP, url: 'https://gh/mcp', headers: [{name: A}]}", "headers.0: "),
        )
    ),
    Row(
        "McpTemplate",
        [with_mcp(NAMED), an_mcp_artifact("{transport: StreamableHTTP, url: 'https://gh/{{ a }}'}")],
        [with_mcp(NAMED), an_mcp_artifact("{transport: StreamableHTTP, url: 'https://gh/a'}")],
        "spec.mcpServers[0].url",
    ),
    Row(
        "ArtifactType",
        [with_mcp(NAMED), a_config_map("gh-server", "skill", **{"1": "a"})],
        [with_mcp(NAMED), an_mcp_artifact("{transport: Stdio, command: [serve]}")],
        "spec.mcpServers[0]",
        "of type skill; this field takes mcp",
    ),
    Row(
        "McpServerNotFound",
        [with_mcp(an_mcp_server(), server="hg")],
        [with_mcp(an_mcp_server())],
        "spec.tools[0].mcp.server",
        "mcpServers has no hg; it has gh",
    ),
    Row(
        "McpServerUnused",
        [with_mcp(an_mcp_server(), an_mcp_server(name="ops"))],
        [with_mcp(an_mcp_server())],
        "spec.mcpServers[1]",
        "never asked",
    ),
    *(
        Row(
            "McpServerName",
            [with_mcp(an_mcp_server(name=name), server=name)],
            [with_mcp(an_mcp_server(name="g_h-1"), server="g_h-1")],
            "spec.mcpServers[0].name",
        )
        for name in ("1st", "g__h", "gh_", "g h", "g.h", "gh\n", "größe")
    ),
    Row(
        "McpToolName",
        [with_mcp(an_mcp_server(), allow=["search", "a.b"])],
        [with_mcp(an_mcp_server(), allow=["search", "a_b"])],
        "spec.tools[0].mcp.allow[1]",
        "gh__a.b",
    ),
    Row(
        "McpToolName",
        [with_mcp(an_mcp_server(), allow=["x" * 61])],
        [with_mcp(an_mcp_server(), allow=["x" * 60])],
        "spec.tools[0].mcp.allow[0]",
    ),
    Row(
        "McpStarAmongNames",
        [with_mcp(an_mcp_server(), allow=["search", "*"])],
        [with_mcp(an_mcp_server(), allow=["*"])],
        "spec.tools[0].mcp.allow",
    ),
    Row(
        "McpTemplate",
        [with_mcp(an_mcp_server(url="https://{{ host }}/mcp"))],
        [with_mcp(an_mcp_server(url="https://gh/mcp"))],
        "spec.mcpServers[0].url",
        "no templates",
    ),
    Row(
        "McpTemplate",
        [with_mcp(an_mcp_server(headers=[{"name": "X-Tenant", "value": "{{ tenant }}"}]))],
        [with_mcp(an_mcp_server(headers=[{"name": "X-Tenant", "value": "blue"}]))],
        "spec.mcpServers[0].headers[0].value",
    ),
    Row(
        "McpTemplate",
        [a_workflow(an_mcp_step(an_mcp_server(url="https://gh/{{ ticket }}")))],
        [a_workflow(an_mcp_step(an_mcp_server(), arguments={"query": "{{ ticket }}"}))],
        "spec.steps[0].mcp.server.url",
    ),
    Row(
        "McpCommandTemplate",
        [with_mcp(a_stdio_server(command=["serve", "{{ tenant }}"]))],
        [with_mcp(a_stdio_server(command=["serve", "{tenant}"]))],
        "spec.mcpServers[0].command[1]",
    ),
    *(
        Row(
            "McpTransport",
            [with_mcp(a_stdio_server(**wrong))],
            [with_mcp(an_mcp_server(**good)), with_mcp(a_stdio_server())],
            f"spec.mcpServers[0].{field}",
        )
        for field, wrong, good in (
            ("headers", {"headers": [{"name": "A", "value": "b"}]}, {"headers": [{"name": "A", "value": "b"}]}),
            ("auth", {"auth": an_audience("gateway")}, {"auth": an_audience("gateway")}),
            ("command[0]", {"command": [" "]}, {}),
        )
    ),
    *(
        Row(
            "McpHeader",
            [with_mcp(an_mcp_server(headers=[{"name": name, "value": "b"} for name in wrong], auth=auth))],
            [
                with_mcp(
                    an_mcp_server(headers=[{"name": "X-A", "value": "b"}, {"name": "X-B", "value": "b"}], auth=auth)
                )
            ],
            f"spec.mcpServers[0].headers[{len(wrong) - 1}].name",
            says,
        )
        for wrong, auth, says in (
            (["Mcp-Session-Id"], None, "the client sets"),
            (["X-A", "x-a"], None, "set twice"),
            (["AUTHORIZATION"], an_audience("gateway"), "auth sets Authorization too"),
        )
    ),
    *(
        Row(
            "McpAudience",
            [with_mcp(an_mcp_server(auth=an_audience(audience)))],
            [with_mcp(an_mcp_server(auth=an_audience("https://gh.kubernetes.example")))],
            "spec.mcpServers[0].auth.serviceAccountToken.audience",
            "good for the API server",
        )
        for audience in ("https://kubernetes.default.svc.cluster.local", "kubernetes", "kubernetes.default.svc")
    ),
    Row(
        "BudgetWithoutOutputTokens",
        [an_agent(limits={"tokenBudget": 1000}, model=a_model(fallbacks=[FALLBACK]))],
        [an_agent(limits={"tokenBudget": 1000}, model=a_model(fallbacks=[{**FALLBACK, "maxOutputTokens": 9}]))],
        "spec.model.fallbacks[0].maxOutputTokens",
    ),
    Row(
        "BudgetWithoutPrice",
        [an_agent(limits=COST)],
        [an_agent(limits=COST, model=a_model(price=PRICE))],
        "spec.model.price",
    ),
    Row(
        "ReplyFillsContextWindow",
        [an_agent(model=a_model(contextWindow=4096, maxOutputTokens=4096))],
        [an_agent(model=a_model(contextWindow=4096, maxOutputTokens=4095))],
        "spec.model.maxOutputTokens",
        "no room for a prompt in a contextWindow of 4096",
    ),
    Row(
        "ReleaseWithoutDurableJournal",
        [an_agent(limits={"onPauseTimeout": "Release"})],
        [an_agent(limits={"onPauseTimeout": "Abort"})],
        "spec.limits.onPauseTimeout",
        options={"durable_journal": False},
    ),
    Row(
        "ParseErrorOfAutonomous",
        [an_agent(retry={"causes": ["ParseError"]})],
        [an_object("Agent", "helper", completion(retry={"causes": ["ParseError"]}))],
        "spec.retry.causes",
    ),
    Row(
        "JsonOutcomeOfText",
        [an_object("Agent", "helper", completion(outcome={"format": "Text", "schema": {}}))],
        [an_object("Agent", "helper", completion(outcome={"format": "JSON", "schema": {}}))],
        "spec.outcome.schema",
    ),
    Row(
        "NoRoomForWrapUp",
        [an_agent(limits={"maxIterations": 1})],
        [an_agent(limits={"maxIterations": 1}, lastIteration="Exit")],
        "spec.limits.maxIterations",
    ),
    Row(
        "TimeoutIsNeverRetried",
        [an_agent(model=a_model(timeoutSeconds=300))],
        [an_agent(model=a_model(timeoutSeconds=299))],
        "spec.model.timeoutSeconds",
        "retry.deadlineSeconds (300)",
    ),
    Row(
        "SameErrorNeverCounts",
        [an_agent(recovery={"maxSameError": 4})],
        [an_agent(recovery={"maxSameError": 3})],
        "spec.recovery.maxSameError",
    ),
    Row(
        "SteeringMissing",
        [an_object("Agent", "helper", {key: value for key, value in autonomous().items() if key != "steering"})],
        [an_agent()],
        "spec.steering",
    ),
    Row(
        "ToolTimeoutCutsStep",
        [an_agent(tools=[a_tool(timeoutSeconds=20)])],
        [an_agent(tools=[a_tool(timeoutSeconds=40)])],
        "spec.tools[0].inlineStep.apiCall.timeoutSeconds",
    ),
    Row(
        "ToolTimeoutCutsStep",
        [an_agent(tools=[a_tool(inlineStep=an_inline_mcp(timeoutSeconds=50), timeoutSeconds=40)])],
        [an_agent(tools=[a_tool(inlineStep=an_inline_mcp(), timeoutSeconds=40)])],
        "spec.tools[0].inlineStep.mcp.timeoutSeconds",
    ),
    # ---- of workflows
    Row(
        "AgentNotFound",
        [a_workflow(ref_step("helpr")), an_agent()],
        [a_workflow(ref_step("helper")), an_agent()],
        "spec.steps[0].agentRef.name",
        "did you mean helper?",
        is_complete=True,
    ),
    Row(
        "AgentElsewhere",
        [a_workflow(ref_step("helper"))],
        [a_workflow(ref_step("helper")), an_agent()],
        "spec.steps[0].agentRef.name",
    ),
    Row(
        "ToolStepInvalid",
        with_tool_step(call_step("fetchh")),
        with_tool_step(call_step("fetch")),
        "spec.steps[0].agentRef",
        "names the step fetch, which does not exist; did you mean fetchh?",
    ),
    Row(
        "ToolStepInvalid",
        with_tool_step(response_step("fetch")),
        with_tool_step(call_step("fetch")),
        "spec.steps[0].agentRef",
        "of kind Response",
    ),
    Row(
        "ToolStepInvalid",
        with_tool_step(call_step("fetch"), description=None),
        with_tool_step({**call_step("fetch"), "description": "Fetches."}, description=None),
        "spec.steps[0].agentRef",
        "no description",
    ),
    Row(
        "TotalWithoutOutputTokens",
        [a_workflow(agent_step(model=NO_BOUND), limits={"tokenBudget": 9})],
        [a_workflow(agent_step(), limits={"tokenBudget": 9})],
        "spec.steps[0].agent.model.maxOutputTokens",
        "spec.limits.tokenBudget needs maxOutputTokens",
    ),
    Row(
        "TotalWithoutPrice",
        [a_workflow(ref_step("helper"), limits=COST), an_agent()],
        [a_workflow(ref_step("helper"), limits=COST), an_agent(model=a_model(price=PRICE))],
        "spec.steps[0].agentRef",
        "Agent helper",
    ),
    Row(
        "ToolExceedsDeadline",
        [a_workflow(agent_step(tools=[a_tool(timeoutSeconds=60)]), runTemplate={"activeDeadlineSeconds": 60})],
        [a_workflow(agent_step(tools=[a_tool(timeoutSeconds=59)]), runTemplate={"activeDeadlineSeconds": 60})],
        "spec.steps[0].agent.tools[0].timeoutSeconds",
    ),
    Row("ScheduleInvalid", [a_schedule("0 7 31 2 *")], [a_schedule("0 7 29 2 *")], "spec.trigger.schedule.cron"),
    Row("ScheduleInvalid", [a_schedule("* * * * * *")], [a_schedule("* * * * *")], "spec.trigger.schedule.cron"),
    Row(
        "ScheduleInvalid",
        [a_schedule(zone="../etc/passwd")],
        [a_schedule(zone="UTC")],
        "spec.trigger.schedule.timeZone",
    ),
    Row(
        "DefaultDoesNotFit",
        [a_workflow(input={"schema": {"properties": {"n": {"type": "integer"}}}, "defaults": {"n": "1"}})],
        [a_workflow(input={"schema": {"properties": {"n": {"type": "integer"}}}, "defaults": {"n": 1}})],
        "spec.input.defaults.n",
    ),
    Row(
        "TriggerWithoutInput",
        [a_workflow(trigger={"type": "OnChange"}, input={"schema": {"required": ["n"]}})],
        [a_workflow(trigger={"type": "OnChange"}, input={"schema": {"required": ["n"]}, "defaults": {"n": 1}})],
        "spec.trigger.type",
    ),
    Row(
        "ConcurrencyWithoutTrigger",
        [a_workflow(concurrencyPolicy="Forbid")],
        [a_workflow(concurrencyPolicy="Forbid", trigger={"type": "OnChange"})],
        "spec.concurrencyPolicy",
    ),
    # ---- of graphs
    Row(
        "RouteToUnknownStep",
        [a_workflow(call_step(routes={"error": "repply"}), response_step())],
        [a_workflow(call_step(routes={"error": "reply", "default": "end"}), response_step())],
        "spec.steps[0].routes.error",
        "did you mean reply?",
    ),
    Row(
        "OutcomeUnmapped",
        [a_workflow(ref_step("helper", done="end")), an_agent(outcome={"enum": ["done", "failed"]})],
        [a_workflow(ref_step("helper", done="end", failed="end")), an_agent(outcome={"enum": ["done", "failed"]})],
        "spec.steps[0].routes",
        "Agent helper may end with failed",
    ),
    Row(
        "SignalUnmapped",
        [a_workflow({**a_router("a > 1"), "routes": {"default": "end"}})],
        [a_workflow(a_router("a > 1"))],
        "spec.steps[0].routes",
        "big",
    ),
    Row(
        "RouteNeverTaken",
        [a_workflow(call_step(routes={"eror": "end"}))],
        [a_workflow(call_step(routes={"error": "end"}))],
        "spec.steps[0].routes.eror",
        "did you mean error?",
    ),
    Row(
        "ExitUnmapped",
        [a_workflow({**agent_step(), "routes": {"aborted": "end"}})],
        [a_workflow(agent_step())],
        "spec.steps[0].routes",
        "max_iterations, budget_exceeded, unrecoverable not mapped",
    ),
    Row(
        "ExitUnmapped",
        [a_workflow(agent_step(guardrails={"input": [{"check": "MaxChars", "maxChars": {"limit": 9}}]}))],
        [
            a_workflow(
                agent_step(
                    routes={"guardrail_violation": "end"},
                    guardrails={"input": [{"check": "MaxChars", "maxChars": {"limit": 9}}]},
                )
            )
        ],
        "spec.steps[0].routes",
        "guardrail_violation not mapped",
    ),
    Row(
        "ExitUnmapped",
        [a_workflow(agent_step(), policy=[{**POLICY, "cel": "true"}])],
        [a_workflow(agent_step(routes={"policy_denied": "end"}), policy=[{**POLICY, "cel": "true"}])],
        "spec.steps[0].routes",
        "policy_denied not mapped",
    ),
    Row(
        "StepUnreachable",
        [a_workflow(call_step(routes={"default": "end"}), response_step())],
        [a_workflow(call_step(routes={"error": "end"}), response_step())],
        "spec.steps[1].id",
    ),
    Row(
        "StepUnreachable",
        [a_workflow(agent_step(), {**call_step("unused"), "toolOnly": True})],
        with_tool_step(call_step("fetch")),
        "spec.steps[1].id",
        "no agent has it as a tool",
    ),
    Row(
        "StepUnreachable",
        [a_workflow(agent_step(), CALLS_ONE)],
        [notifying(CALLS_ONE)],
        "spec.steps[1].id",
        "no hook notifies through it",
    ),
    # ---- of guardrails
    Row(
        "GuardrailArtifactInvalid",
        [gated_by("tone@1"), a_config_map("tone", "guardrail", **{"1": "- {check: MaxChars}"})],
        [gated_by("tone@1"), a_config_map("tone", "guardrail", **{"1": "- {check: MaxChars, maxChars: {limit: 9}}"})],
        "spec.guardrails.output[0].artifact.ref",
        "the artifact tone@1 cannot be used: check 0: MaxChars needs maxChars",
    ),
    Row(
        "GuardrailArtifactInvalid",
        [gated_by("tone@1"), a_config_map("tone", "guardrail", **{"1": DENIES.format("(?=a)")})],
        [gated_by("tone@1"), a_config_map("tone", "guardrail", **{"1": DENIES.format("(?i)a")})],
        "spec.guardrails.output[0].artifact.ref",
        "check 0.regexDeny.patterns.0 of the artifact tone@1: it is no regular expression of RE2",
    ),
    Row(
        "ArtifactUnpinned",
        [gated_by("tone"), a_config_map("tone", "guardrail", **{"1": DENIES.format("a")})],
        [gated_by("tone@1"), a_config_map("tone", "guardrail", **{"1": DENIES.format("a")})],
        "spec.guardrails.output[0].artifact.ref",
        "write tone@<version>",
    ),
    Row(
        "ArtifactType",
        [gated_by("tone@1"), a_config_map("tone", "prompt", **{"1": DENIES.format("a")})],
        [gated_by("tone@1"), a_config_map("tone", "guardrail", **{"1": DENIES.format("a")})],
        "spec.guardrails.output[0].artifact",
        "this field takes guardrail",
    ),
    # ---- of hooks
    Row(
        "HookArtifactInvalid",
        [an_agent(hooks=[{"artifact": "audit@1"}]), a_config_map("audit", "hook", **{"1": "[{event: Never}]"})],
        [an_agent(hooks=[{"artifact": "audit@2"}]), a_config_map("audit", "hook", **{"2": A_HOOK})],
        "spec.hooks[0]",
        "the artifact audit@1 holds no hooks: hook 0.event",
    ),
    Row("NotifyStepInvalid", [notifying(CALLS_ONE, step="pag")], [notifying(CALLS_ONE)], "spec.hooks[0]", "mean page?"),
    Row(
        "NotifyStepInvalid",
        [notifying(response_step("page"))],
        [notifying({**CALLS_ONE, "toolOnly": False})],
        "spec.hooks[0]",
        "a step of kind Response",
    ),
    Row(
        "NotifyStepInvalid",
        [a_workflow(agent_step(hooks=[{"artifact": "audit@1"}])), a_config_map("audit", "hook", **{"1": A_HOOK})],
        [
            a_workflow(agent_step(hooks=[{"artifact": "audit@1"}]), CALLS_ONE),
            a_config_map("audit", "hook", **{"1": A_HOOK}),
        ],
        "spec.steps[0].agent.hooks[0]",
        "the artifact audit@1: notify.step names page",
    ),
    Row(
        "HookNeverFires",
        [a_workflow(agent_step(), response_step(hooks=[{"event": "AfterTool", "action": "Log"}]))],
        [a_workflow(agent_step(hooks=[{"event": "AfterTool", "action": "Log"}]), response_step())],
        "spec.steps[1].hooks[0]",
        "step reply has no tools",
    ),
    Row(
        "PayloadPathUnknown",
        [notifying({**CALLS_ONE, "apiCall": {"url": "https://x/{{ ticket }}"}})],
        [notifying({**CALLS_ONE, "apiCall": {"url": "https://x/{{ error.type }}"}})],
        "spec.steps[1].apiCall.url",
        "it sees the payload",
    ),
    # ---- of contexts
    Row(
        "NeverResolves",
        [a_workflow(agent_step(), CALLS_ONE, input=SMALL)],
        [{**notifying(CALLS_ONE), "spec": {**notifying(CALLS_ONE)["spec"], "input": SMALL}}],
        "spec.steps[1].apiCall.url",
        "neither the input nor a step sets step",
    ),
    Row(
        "NeverResolves",
        [a_workflow(call_step(url="https://x/{{ tiket.id }}"), input=SMALL)],
        [a_workflow(call_step(url="https://x/{{ ticket.id }}"), input=SMALL)],
        "spec.steps[0].apiCall.url",
        "did you mean ticket?",
    ),
    Row(
        "NeverResolves",
        [a_workflow(call_step(), response_step(path="_last_eror"))],
        [a_workflow(call_step(), response_step(path="_last_error"))],
        "spec.steps[1].response.mapping.answer",
        "did you mean _last_error?",
    ),
    Row(
        "NeverResolves",
        [a_workflow(agent_step(tools=[A_WRITER], mcpServers=[an_mcp_server()]), from_tool("get"), input=SMALL)],
        [
            a_workflow(agent_step(tools=[A_WRITER], mcpServers=[an_mcp_server()]), from_tool("search"), input=SMALL),
            a_workflow(agent_step(tools=[WRITES_ANY], mcpServers=[an_mcp_server()]), from_tool("get"), input=SMALL),
        ],
        "spec.steps[1].response.mapping.answer",
    ),
    Row(
        "MayNotResolve",
        [
            a_workflow(ref_step("writer"), input=properties("ticket")),
            an_object("Agent", "writer", completion(prompt={"inline": "{{ tiket }}"})),
        ],
        [
            a_workflow(ref_step("writer"), input=properties("ticket")),
            an_object("Agent", "writer", completion(prompt={"inline": "{{ ticket }}"})),
        ],
        "spec.steps[0].agentRef",
        "Agent writer: tiket: neither input.schema nor a step names tiket",
    ),
    Row(
        "MayNotResolve",
        [a_workflow(call_step(), response_step(path="fetch_resul"), input=properties("customer"))],
        [a_workflow(call_step(), response_step(path="fetch_result"), input=properties("customer"))],
        "spec.steps[1].response.mapping.answer",
    ),
    Row(
        "RouterNameUnknown",
        [a_workflow(a_router("ratin > 1"), input=properties("rating"))],
        [a_workflow(a_router("rating > 1 && context.rating > 1"), input=properties("rating"))],
        "spec.steps[0].router.conditions[0].cel",
        "ratin",
    ),
    # ---- of pods
    Row("EnvInvalid", [env(name="A", val="x")], [env(name="A", value="x")], "spec.runTemplate.env[0].val"),
    Row("EnvInvalid", [env(name="A", value=1)], [env(name="A", value="1")], "spec.runTemplate.env[0].value"),
    Row(
        "EnvInvalid",
        [env(name="PILOTHOUSE_ATTEMPT", value="1")],
        [env(name="ATTEMPT", value="1")],
        "spec.runTemplate.env[0].name",
    ),
    Row(
        "EnvInvalid",
        [env(name="A", valueFrom={})],
        [env(name="A", valueFrom={"secretKeyRef": {"name": "s", "key": "k"}})],
        "spec.runTemplate.env[0].valueFrom",
    ),
    Row(
        "EnvHoldsSecret",
        [env(name="API_TOKEN", value="abc")],
        [env(name="MAX_TOKENS", value="100")],
        "spec.runTemplate.env[0].value",
    ),
    Row(
        "EnvFromInvalid",
        [a_workflow(runTemplate={"envFrom": [{"prefix": "A_"}]})],
        [a_workflow(runTemplate={"envFrom": [{"prefix": "A_", "configMapRef": {"name": "c"}}]})],
        "spec.runTemplate.envFrom[0]",
    ),
    Row(
        "TolerationInvalid",
        [a_workflow(runTemplate={"tolerations": [{"kee": "a"}]})],
        [a_workflow(runTemplate={"tolerations": [{"key": "a"}]})],
        "spec.runTemplate.tolerations[0].kee",
    ),
    Row(
        "QuantityInvalid",
        [a_workflow(runTemplate={"resources": {"limits": {"memory": "128MB"}}})],
        [a_workflow(runTemplate={"resources": {"limits": {"memory": "128Mi", "cpu": 1}}})],
        "spec.runTemplate.resources.limits.memory",
    ),
    Row(
        "LabelInvalid",
        [a_workflow(runTemplate={"labels": {"team": "a b"}})],
        [a_workflow(runTemplate={"labels": {"example.org/team": "a-b"}})],
        "spec.runTemplate.labels.team",
    ),
    # ---- of runs
    Row(
        "TargetNotFound",
        [a_run(), a_workflow(name="triag")],
        [a_run(), a_workflow()],
        "spec.workflowRef.name",
        "did you mean triag?",
        is_complete=True,
    ),
    Row("TargetElsewhere", [a_run()], [a_run(), a_workflow()], "spec.workflowRef.name"),
    Row(
        "SteeringInManifest",
        [a_run(control={"mode": "Pause"})],
        [a_run()],
        "spec.control",
        "patch spec.control on the live run",
    ),
    Row(
        "InputInvalid",
        [a_run(input={"ticket": 1}), a_workflow(input={"schema": {"required": ["tickets"]}})],
        [a_run(input={"tickets": 1}), a_workflow(input={"schema": {"required": ["tickets"]}})],
        "spec.input",
    ),
    Row(
        "InputInvalid",
        [a_run(input={"ticket": "x" * 262_144}), a_workflow()],
        [a_run(input={"ticket": "x" * 262_000}), a_workflow()],
        "spec.input",
        "the limit is 262144",
    ),
    Row(
        "ToolOfAgentRun",
        [
            a_run(workflowRef=None, agentRef={"name": "helper"}),
            an_agent(tools=[a_tool(inlineStep=None, step="fetch")]),
        ],
        [a_run(workflowRef=None, agentRef={"name": "helper"}), an_agent()],
        "spec.agentRef",
    ),
    Row(
        "ReleaseOfRunWithoutDurableJournal",
        [a_run(limits={"onPauseTimeout": "Release"})],
        [a_run(limits={"onPauseTimeout": "Abort"})],
        "spec.limits.onPauseTimeout",
        options={"durable_journal": False},
    ),
    Row(
        "SessionWithoutDurableJournal",
        [a_run(session="c-17")],
        [a_run()],
        "spec.session",
        options={"durable_journal": False},
    ),
    Row(
        "RunTotalUnreservable",
        [a_run(limits={"tokenBudget": 9}), a_workflow(agent_step(model=NO_BOUND))],
        [a_run(limits={"tokenBudget": 9}), a_workflow()],
        "spec.limits.tokenBudget",
    ),
    Row(
        "ToolExceedsRunDeadline",
        [
            a_run(overrides={"activeDeadlineSeconds": 50}),
            a_workflow(agent_step(limits={"toolTimeoutSeconds": 60})),
        ],
        [a_run(overrides={"activeDeadlineSeconds": 50}), a_workflow()],
        "spec.overrides.activeDeadlineSeconds",
    ),
    Row(
        "OverrideQuantityInvalid",
        [a_run(overrides={"resources": {"requests": {"cpu": "half"}}})],
        [a_run(overrides={"resources": {"requests": {"cpu": "500m"}}})],
        "spec.overrides.resources.requests.cpu",
    ),
    # ---- of Resource steps
    Row(
        "ResourceFieldUnused",
        [a_workflow(resource_step("List", name="limits"))],
        [a_workflow(resource_step("List", labelSelector="team=a"))],
        "spec.steps[0].resource.name",
        "operation List has no name",
    ),
    Row(
        "ResourceFieldUnused",
        [a_workflow(resource_step("Get", name="limits", labelSelector="team=a"))],
        [a_workflow(resource_step("Get", name="limits"))],
        "spec.steps[0].resource.labelSelector",
    ),
    Row(
        "ResourceObjectInvalid",
        [a_workflow(resource_step("Create", body={"data": {}}))],
        [a_workflow(resource_step("Create", body={"metadata": {"generateName": "limits-"}}))],
        "spec.steps[0].resource.name",
        "a new object needs a name",
    ),
    Row(
        "ResourceObjectInvalid",
        [a_workflow(resource_step("Create", name="a", body={"kind": "Secret"}))],
        [a_workflow(resource_step("Create", name="a", body={"kind": "ConfigMap", "apiVersion": "v1"}))],
        "spec.steps[0].resource.body.kind",
        "resource.kind says ConfigMap, and this says Secret",
    ),
    Row(
        "ResourceObjectInvalid",
        [a_workflow(resource_step("Create", name="a", body={"metadata": {"name": "b", "namespace": "other"}}))],
        [
            a_workflow(
                resource_step(
                    "Create", name="a", namespace="other", body={"metadata": {"name": "a", "namespace": "other"}}
                )
            )
        ],
        "spec.steps[0].resource.body.metadata.namespace",
        "resource.namespace says the namespace of the run",
    ),
    Row(
        "ResourceEffectUnderstated",
        [a_workflow(resource_step("Delete", name="a") | {"effect": "ReadOnly"})],
        [a_workflow(resource_step("Get", name="a") | {"effect": "ReadOnly"})],
        "spec.steps[0].effect",
        "operation Delete changes the cluster",
    ),
    Row(
        "ResourceEffectUnderstated",
        [an_agent(tools=[a_tool(effect="ReadOnly", inlineStep=inline_resource("Delete", name="a"))])],
        [an_agent(tools=[a_tool(effect="Idempotent", inlineStep=inline_resource("Delete", name="a"))])],
        "spec.tools[0].effect",
    ),
    Row(
        "ResourceToolEffectUnderstated",
        [
            a_workflow(
                agent_step(tools=[a_tool(inlineStep=None, step="res", effect="ReadOnly")]),
                resource_step("Delete", name="a") | {"toolOnly": True},
            )
        ],
        [
            a_workflow(
                agent_step(tools=[a_tool(inlineStep=None, step="res", effect="Once")]),
                resource_step("Delete", name="a") | {"toolOnly": True},
            )
        ],
        "spec.steps[0].agent.tools[0].effect",
    ),
    # ---- of children
    Row(
        "DelegateTargetNotFound",
        [a_workflow(delegating(workflowRef="serch")), a_workflow(name="search")],
        [a_workflow(delegating(workflowRef="search")), a_workflow(name="search")],
        "spec.steps[0].delegate.workflowRef.name",
        "did you mean search?",
        is_complete=True,
    ),
    Row(
        "DelegateTargetElsewhere",
        [a_workflow(delegating(agentRef="search"))],
        [a_workflow(delegating(agentRef="search")), an_agent("search")],
        "spec.steps[0].delegate.agentRef.name",
        "there is no Agent search among what was given",
    ),
    Row(
        "DelegateOutcomeUnmapped",
        [a_workflow(delegating(agentRef="b")), an_agent("b", outcome={"enum": ["found"]})],
        [
            a_workflow(delegating(agentRef="b") | {"routes": {"found": "end"}}),
            an_agent("b", outcome={"enum": ["found"]}),
        ],
        "spec.steps[0].routes",
        "Agent b may end with found",
    ),
    Row(
        "DelegateReachesItself",
        [a_workflow(delegating(workflowRef="b"), name="a"), a_workflow(delegating(workflowRef="a"), name="b")],
        [a_workflow(delegating(workflowRef="b"), name="a"), a_workflow(name="b")],
        "spec.steps[0].delegate.workflowRef",
        "a → b → a",
    ),
    Row(
        "DelegatesTooDeep",
        [
            a_workflow(delegating(workflowRef="b"), name="a"),
            a_workflow(delegating(agentRef="c"), name="b"),
            an_agent("c", tools=[a_delegate("d")]),
            an_agent("d", tools=[a_delegate("e")]),
            an_agent("e"),
        ],
        [
            a_workflow(delegating(workflowRef="b"), name="a"),
            a_workflow(delegating(agentRef="c"), name="b"),
            an_agent("c", tools=[a_delegate("d")]),
            an_agent("d"),
        ],
        "spec.steps",
        "b → c → d → e is 4",
    ),
    Row(
        "AgentDelegatesTooDeep",
        [an_agent(one, tools=[a_delegate(two)]) for one, two in ("ab", "bc", "cd", "de")] + [an_agent("e")],
        [an_agent(one, tools=[a_delegate(two)]) for one, two in ("ab", "bc", "cd")] + [an_agent("d")],
        "spec.tools",
        "b → c → d → e is 4",
    ),
    Row(
        "ChildBudgetUnreservable",
        [a_workflow(agent_step(tools=[a_delegate("b")]), limits={"tokenBudget": 9000}), unbounded("b")],
        [a_workflow(agent_step(tools=[a_delegate("b")])), unbounded("b")],
        "spec.steps[0]",
        "Agent b: a part of tokenBudget that is lent to a child needs maxOutputTokens",
    ),
    # ---- of supervisors
    Row(
        "OnErrorWithoutSync",
        [a_supervisor(judge={"model": "small", "criteria": {"inline": "x"}, "onError": "Pause"})],
        [a_supervisor(judge={"model": "small", "criteria": {"inline": "x"}, "onError": "Pause"}, enforcement="Sync")],
        "spec.judge.onError",
    ),
    Row(
        "BarrierWithoutSync",
        [a_supervisor(onBarrierTimeout="Abort")],
        [a_supervisor(onBarrierTimeout="Abort", enforcement="Sync")],
        "spec.onBarrierTimeout",
        "enforcement is Async",
    ),
    Row(
        "RuleRepeated",
        [a_supervisor(rules=[OFTEN, {"name": "again", "when": "ToolRepeated", "then": "Abort"}])],
        [a_supervisor(rules=[OFTEN, {"name": "again", "when": "ToolRepeated", "toolRepeated": {"count": 5}}])],
        "spec.rules[1]",
        "fires whenever the rule often does",
    ),
    Row(
        "RuleToolUnknown",
        [watched_by(OFTEN | {"toolRepeated": {"tool": "look"}}), WATCHED],
        [watched_by(OFTEN | {"toolRepeated": {"tool": "lookup"}}), WATCHED],
        "spec.rules[0].toolRepeated.tool",
        "did you mean lookup?",
    ),
    Row(
        "RuleToolUnknown",
        [watched_by(OFTEN | {"toolRepeated": {"tool": "gh__push"}}), an_allowing_workflow("pull")],
        [watched_by(OFTEN | {"toolRepeated": {"tool": "gh__pull"}}), an_allowing_workflow("pull")],
        "spec.rules[0].toolRepeated.tool",
        "gh__pull",
    ),
    Row(
        "RuleToolUnknown",
        [watched_by(OFTEN | {"toolRepeated": {"tool": "gh__pull"}}), an_allowing_workflow("*")],
        [watched_by(OFTEN | {"toolRepeated": {"tool": "github"}}), an_allowing_workflow("*")],
        "spec.rules[0].toolRepeated.tool",
    ),
    Row(
        "RuleUnreachable",
        [watched_by({"name": "late", "when": "IterationReached", "iterationReached": {"count": 9}}), WATCHED],
        [watched_by({"name": "late", "when": "IterationReached", "iterationReached": {"count": 8}}), WATCHED],
        "spec.rules[0].iterationReached.count",
        "more than 8 iterations",
    ),
    Row(
        "RuleUnreachable",
        [watched_by({"name": "dear", "when": "BudgetFraction"}), WATCHED],
        [watched_by({"name": "dear", "when": "BudgetFraction"}), a_workflow(limits={"tokenBudget": 9000})],
        "spec.rules[0]",
        "never fires",
    ),
    Row("WatchesNothing", [a_supervisor()], [a_supervisor(selector={})], "spec.selector", is_complete=True),
    Row(
        "SupervisorNotFound",
        [a_workflow(supervisorRefs=[{"name": "carefull"}]), a_supervisor()],
        [a_workflow(supervisorRefs=[{"name": "careful"}]), a_supervisor()],
        "spec.supervisorRefs[0].name",
        "did you mean careful?",
        is_complete=True,
    ),
    Row(
        "SupervisorElsewhere",
        [a_workflow(supervisorRefs=[{"name": "careful"}])],
        [a_workflow(supervisorRefs=[{"name": "careful"}]), a_supervisor()],
        "spec.supervisorRefs[0].name",
    ),
]


def identify(row: Row) -> str:
    return f"{row.check}-{row.field}"


@pytest.mark.parametrize("row", ROWS, ids=identify)
def test_a_check_finds_what_is_wrong_and_says_where(row: Row) -> None:
    found = [f for f in findings_of(row.bad, row.is_complete, **(row.options or {})) if f.check == row.check]
    assert [f.field for f in found if f.field == row.field], found
    finding = next(f for f in found if f.field == row.field)
    want_severity = next(check.severity for check in CHECKS if check.name == row.check)
    assert finding.severity == want_severity
    assert row.says in finding.sentence


@pytest.mark.parametrize("row", ROWS, ids=identify)
def test_a_check_lets_the_near_miss_pass(row: Row) -> None:
    found = findings_of(row.good, row.is_complete, **(row.options or {}))
    assert [f for f in found if f.check == row.check] == []
    assert [f for f in found if f.check in ("Schema", "Rule", "UnknownField")] == []


def test_every_check_of_the_table_has_a_row() -> None:
    assert {row.check for row in ROWS} == {check.name for check in CHECKS}


def test_names_of_checks_are_unique() -> None:
    names = [check.name for check in CHECKS]
    assert sorted(set(names)) == sorted(names)


def test_a_valid_manifest_has_no_finding() -> None:
    assert findings_of([a_workflow(), an_agent(), a_run()]) == []


@pytest.mark.parametrize("is_complete", [True, False])
def test_an_object_that_was_given_and_refused_is_not_called_missing(is_complete: bool) -> None:
    agent, workflow = an_agent(mode="Odd"), a_workflow(ref_step("helper"), suspend="maybe")
    run, run_of_agent = a_run(), a_run(workflowRef=None, agentRef={"name": "helper"})
    run_of_agent["metadata"]["name"] = "r2"
    findings = findings_of([agent, a_workflow(ref_step("helper"))], is_complete)
    assert [(finding.check, finding.field) for finding in findings] == [("Schema", "spec.mode")]
    findings = findings_of([agent, workflow, run, run_of_agent], is_complete)
    assert [(finding.check, finding.field) for finding in findings] == [
        ("Schema", "spec.mode"),
        ("Schema", "spec.suspend"),
    ]


def test_strict_turns_an_unpinned_artifact_into_an_error() -> None:
    found = findings_of([an_agent(steering={"artifact": "tone"})], strict=True)
    assert [(f.check, f.severity) for f in found if f.check == "ArtifactUnpinned"] == [("ArtifactUnpinned", "Error")]


def test_a_price_that_a_table_knows_is_enough() -> None:
    assert findings_of([an_agent(limits=COST)], known_price=lambda endpoint: endpoint.name == "scripted") == []
