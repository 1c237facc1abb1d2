"""Which module honours which field of Agent, Workflow, Supervisor and AgentRun."""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from pilothouse_api.v1alpha1 import agent, agentrun, common, steps, supervisor, workflow

_ENDPOINT = {
    "pilothouse_runner.adapters.models.openai": "apiBase apiKeySecretRef temperature timeoutSeconds name",
    "pilothouse_engine.turns": "maxOutputTokens",
    "pilothouse_engine.account": "price",
    "pilothouse_engine.catalog": "script contextWindow",
}
_TEXT = {
    "pilothouse_api.plan": "inline",
    "pilothouse_control.texts": "configMapKeyRef artifact",
}
_LIMITS = "tokenBudget costBudgetUSD maxToolCalls"
_VISIT_LIMITS = "maxIterations maxParallelToolCalls toolTimeoutSeconds maxToolResultChars pauseSeconds onPauseTimeout"

HONOURED: Mapping[type[BaseModel], Mapping[str, str]] = {
    agent.AgentSpec: {
        "pilothouse_engine.tool_schemas": "description tools",
        "pilothouse_engine.turns": "mode lastIteration retry limits",
        "pilothouse_engine.recovery": "recovery",
        "pilothouse_engine.catalog": "guardrails model mcpServers policy",
        "pilothouse_engine.prompts.texts": "steering skills system prompt contextInjection",
        "pilothouse_engine.outcome": "outcome",
        "pilothouse_engine.hooks.firings": "hooks",
    },
    agent.ModelEndpoint: _ENDPOINT,
    agent.AgentModel: {**_ENDPOINT, "pilothouse_engine.catalog": "script contextWindow fallbacks"},
    agent.Price: {"pilothouse_engine.account": "inputPerMillionUSD outputPerMillionUSD"},
    agent.Skill: {
        "pilothouse_engine.prompts.texts": "name",
        "pilothouse_engine.catalog": "inline",
        "pilothouse_control.texts": "configMapKeyRef artifact",
    },
    agent.Tool: {
        "pilothouse_engine.tool_schemas": "name description parameters step inlineStep",
        "pilothouse_engine.catalog": "effect mcp agentRef background",
        "pilothouse_engine.executions": "writesContext timeoutSeconds",
        "pilothouse_engine.batch": "maxCalls approval",
    },
    agent.InlineStep: {
        "pilothouse_engine.catalog": "kind apiCall mcp resource router function",
    },
    agent.McpTools: {"pilothouse_engine.mcp.tools": "server allow"},
    agent.Recovery: {"pilothouse_engine.recovery": "maxFailingBatches maxSameError"},
    agent.Outcome: {"pilothouse_engine.outcome": "enum write format schema map"},
    agent.Guardrails: {"pilothouse_engine.catalog": "input tools output"},
    agent.GuardrailCheck: {
        "pilothouse_api.guardrails": "check jsonSchema regexDeny maxChars piiMask secretMask llmJudge promptInjection "
        "artifact",
    },
    agent.JsonSchemaCheck: {"pilothouse_engine.guardrails.checks.json_schema": "schema"},
    agent.RegexDeny: {"pilothouse_engine.guardrails.checks.regex_deny": "patterns"},
    agent.MaxChars: {"pilothouse_engine.guardrails.checks.max_chars": "limit"},
    agent.PiiMask: {"pilothouse_engine.guardrails.checks.pii_mask": "entities"},
    agent.LlmJudge: {"pilothouse_engine.guardrails.gates": "criteria onError"},
    agent.PromptInjection: {"pilothouse_engine.guardrails.checks.prompt_injection": "action"},
    agent.ArtifactCheck: {"pilothouse_engine.guardrails.gates": "ref"},
    agent.AgentLimits: {"pilothouse_engine.limits": f"{_LIMITS} {_VISIT_LIMITS}"},
    agentrun.RunLimits: {"pilothouse_engine.limits": f"{_LIMITS} {_VISIT_LIMITS}"},
    workflow.RunTotals: {"pilothouse_engine.limits": _LIMITS},
    common.Retry: {"pilothouse_engine.retries": "attempts causes backoffSeconds maxBackoffSeconds deadlineSeconds"},
    common.TextSource: _TEXT,
    common.LocalRef: {"pilothouse_control.world": "name"},
    common.SecretKeyRef: {"pilothouse_runner.adapters.models.openai": "name key"},
    common.ConfigMapKeyRef: {"pilothouse_control.texts": "name key"},
    common.Header: {"pilothouse_engine.steps.api_request": "name value valueFrom"},
    common.Hook: {"pilothouse_engine.hooks.firings": "event action notify artifact"},
    common.NotifyAction: {"pilothouse_engine.hooks.firings": "step"},
    common.ValueFrom: {"pilothouse_engine.steps.api_request": "secretKeyRef"},
    workflow.WorkflowSpec: {
        "pilothouse_control.triggers": "description trigger suspend concurrencyPolicy",
        "pilothouse_control.resolution": "input runTemplate",
        "pilothouse_engine.catalog": "steps limits policy",
        "pilothouse_operator.reconcile.workflows": "history",
        "pilothouse_engine.decide": "maxStepVisits",
        "pilothouse_engine.hooks.firings": "hooks",
        "pilothouse_control.validation.supervisors": "supervisorRefs",
    },
    workflow.InputSpec: {"pilothouse_control.inputs": "schema defaults"},
    workflow.Step: {
        "pilothouse_engine.catalog": "id kind toolOnly effect apiCall mcp resource approval router function delegate",
        "pilothouse_engine.tool_schemas": "description",
        "pilothouse_api.plan": "agentRef agent",
        "pilothouse_engine.steps.registry": "response",
        "pilothouse_engine.routes": "routes",
        "pilothouse_engine.hooks.firings": "hooks",
    },
    workflow.Trigger: {"pilothouse_control.triggers": "type schedule"},
    workflow.Schedule: {"pilothouse_control.triggers": "cron timeZone startingDeadlineSeconds"},
    workflow.History: {"pilothouse_control.retention": "succeeded failed"},
    workflow.RunTemplate: {
        "pilothouse_operator.workloads.manifests": "serviceAccountName resources env envFrom nodeSelector tolerations "
        "runtimeClassName image labels",
        "pilothouse_engine.decide": "activeDeadlineSeconds",
        "pilothouse_operator.runs.classification": "maxAttempts",
        "pilothouse_operator.reconcile.workflows": "ttlSecondsAfterFinished",
    },
    agentrun.AgentRunSpec: {
        "pilothouse_control.resolution": "workflowRef agentRef input overrides",
        "pilothouse_engine.control": "limits control",
        "pilothouse_engine.sessions.loading": "session",
    },
    agentrun.Overrides: {
        "pilothouse_control.resolution": "resources activeDeadlineSeconds maxAttempts",
        "pilothouse_operator.watching.finished": "ttlSecondsAfterFinished",
    },
    agentrun.Control: {"pilothouse_engine.control": "mode reason by steer approvals"},
    agentrun.ApprovalDecision: {"pilothouse_engine.approvals": "decision arguments remove reason by"},
    common.PolicyRule: {"pilothouse_engine.policies.evaluation": "name at cel http verdict message"},
    common.PolicyHttp: {"pilothouse_engine.policies.http": "url timeoutSeconds"},
    steps.Approval: {"pilothouse_engine.step_gates": "title show expiresSeconds"},
    agentrun.SteerMessage: {"pilothouse_engine.control": "message by"},
    steps.APICall: {
        "pilothouse_engine.steps.api_call": "method timeoutSeconds output extract retry",
        "pilothouse_engine.steps.api_request": "url headers query body",
    },
    steps.Extract: {"pilothouse_engine.steps.api_call": "path as"},
    steps.ResourceCall: {
        "pilothouse_engine.steps.resource": "operation apiVersion kind name namespace labelSelector body "
        "timeoutSeconds output"
    },
    steps.Router: {"pilothouse_engine.steps.router": "match conditions"},
    steps.RouterCondition: {"pilothouse_engine.steps.router": "cel signal"},
    steps.FunctionCall: {"pilothouse_engine.steps.function": "callable source arguments timeoutSeconds output"},
    steps.McpCall: {"pilothouse_engine.steps.mcp": "server tool arguments timeoutSeconds output"},
    steps.McpServer: {
        "pilothouse_engine.mcp.tools": "name required",
        "pilothouse_control.mcp_artifacts": "artifact",
        "pilothouse_runner.adapters.mcp.client": "transport",
        "pilothouse_runner.adapters.mcp.http_transport": "url",
        "pilothouse_runner.adapters.mcp.stdio_transport": "command",
        "pilothouse_runner.adapters.mcp.credentials": "headers auth",
    },
    steps.McpAuth: {"pilothouse_runner.adapters.mcp.credentials": "serviceAccountToken"},
    steps.ServiceAccountTokenAuth: {"pilothouse_runner.adapters.mcp.credentials": "audience"},
    steps.Delegate: {
        "pilothouse_engine.children": "agentRef workflowRef input",
    },
    supervisor.SupervisorSpec: {
        "pilothouse_control.supervision.bindings": "selector",
        "pilothouse_control.supervision.planning": "enforcement onBarrierTimeout barrierTimeoutSeconds",
        "pilothouse_control.supervision.findings": "rules onViolation",
        "pilothouse_control.supervision.acting": "steerMessage",
        "pilothouse_control.supervision.cadence": "judge",
    },
    supervisor.SupervisorRule: {
        "pilothouse_control.supervision.findings": "name then",
        "pilothouse_control.supervision.rules.registry": "when toolRepeated budgetFraction iterationReached "
        "identicalCallRepeated noProgressFor expression",
    },
    supervisor.ToolRepeated: {"pilothouse_control.supervision.rules.tool_repeated": "tool count"},
    supervisor.BudgetFraction: {"pilothouse_control.supervision.rules.budget_fraction": "percent"},
    supervisor.IterationReached: {"pilothouse_control.supervision.rules.iteration_reached": "count"},
    supervisor.IdenticalCallRepeated: {"pilothouse_control.supervision.rules.identical_call_repeated": "count"},
    supervisor.NoProgressFor: {"pilothouse_control.supervision.rules.no_progress_for": "seconds"},
    supervisor.ExpressionRule: {"pilothouse_control.supervision.rules.expression": "cel"},
    supervisor.Judge: {
        "pilothouse_control.supervision.cadence": "model everyNIterations timeoutSeconds onError tokenBudget",
        "pilothouse_control.texts": "criteria",
    },
    supervisor.LabelSelector: {"pilothouse_control.supervision.selectors": "matchLabels matchExpressions"},
    supervisor.LabelRequirement: {"pilothouse_control.supervision.selectors": "key operator values"},
    steps.Response: {"pilothouse_engine.steps.response": "mapping"},
}


HANDED_ON: Mapping[type[BaseModel], str] = {common.ResourceRequirements: "requests limits"}
"""Fields that go into the pod as they are, together with the field that holds them."""


def honoured() -> Iterator[tuple[type[BaseModel], str, str]]:
    """Yield model, field and the module that honours it."""
    for model, modules in HONOURED.items():
        for module, fields in modules.items():
            yield from ((model, field, module) for field in fields.split())
