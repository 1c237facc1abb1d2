"""Checks of one agent, whichever workflow uses it."""

from collections.abc import Iterator

from pilothouse_api.v1alpha1.agent import Tool
from pilothouse_api.v1alpha1.steps import APICall, FunctionCall, McpCall, ResourceCall
from pilothouse_control.validation.scene import AgentSubject, Check, Problem, Scene
from pilothouse_control.validation.sentences import did_you_mean

TOOL_KINDS = ("APICall", "MCP", "Resource", "Router", "Function")
"""Kinds of steps that can be tools."""


def judge_descriptions(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A tool that says nothing of what it does; one that is a step may say it there."""
    for path, tool in subject.tools():
        if not tool.description and (tool.inline_step is not None or tool.agent_ref is not None):
            what = f"the tool {tool.name} has no description, and the model chooses tools by it"
            yield Problem((*path, "description"), what, "say what it returns or does")


def judge_own_agent(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A tool that reaches the agent it belongs to, directly or through other agents."""
    for path, tool in subject.tools():
        if tool.agent_ref is None:
            continue
        chain = _chain_to(subject.name, tool.agent_ref.name, scene)
        if chain is not None:
            what = f"the tool {tool.name} reaches its own Agent: {' → '.join([subject.name, *chain])}"
            yield Problem((*path, "agentRef"), what, "remove one of these references")


def _chain_to(target: str, start: str, scene: Scene) -> list[str] | None:
    """Return the names from `start` to `target` along agentRef tools, breadth first."""
    chains = [[start]]
    seen = {start}
    while chains:
        chain = chains.pop(0)
        if chain[-1] == target:
            return chain
        agent = scene.agents.get(chain[-1])
        for tool in agent.spec.tools if agent is not None else ():
            if tool.agent_ref is not None and tool.agent_ref.name not in seen:
                seen.add(tool.agent_ref.name)
                chains.append([*chain, tool.agent_ref.name])
    return None


def judge_unknown_agent(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A tool that refers to an Agent that is nowhere."""
    for path, tool in subject.tools():
        if tool.agent_ref is not None and scene.is_complete and tool.agent_ref.name not in scene.agents:
            what = f"there is no Agent {tool.agent_ref.name}"
            yield Problem((*path, "agentRef", "name"), what, did_you_mean(tool.agent_ref.name, scene.agents))


def judge_output_tokens(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A token budget without a bound of each reply, of fallbacks too."""
    if subject.spec.limits.token_budget is None:
        return
    yield from endpoints_without_output_tokens(subject, "limits.tokenBudget")


def endpoints_without_output_tokens(subject: AgentSubject, budget: str) -> Iterator[Problem]:
    """Yield the models of an agent that have no maxOutputTokens."""
    for path, endpoint in subject.endpoints():
        if endpoint.max_output_tokens is None:
            what = f"{budget} needs maxOutputTokens of {endpoint.name}: a call is reserved before it is made"
            yield Problem((*path, "maxOutputTokens"), what, "set it, 1024 for example")


def judge_price(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A cost budget for a model of which nobody knows the price."""
    if subject.spec.limits.cost_budget_usd is not None:
        yield from endpoints_without_price(scene, subject, "limits.costBudgetUSD")


def endpoints_without_price(scene: Scene, subject: AgentSubject, budget: str) -> Iterator[Problem]:
    """Yield the models of an agent whose price is not known."""
    for path, endpoint in subject.endpoints():
        if not scene.known_price(endpoint):
            what = f"{budget} needs the price of {endpoint.name}, and it is not known"
            yield Problem((*path, "price"), what, "set price.inputPerMillionUSD and price.outputPerMillionUSD")


def judge_window(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A reply that may take the whole context window."""
    for path, endpoint in subject.endpoints():
        longest, window = endpoint.max_output_tokens, endpoint.context_window
        if longest is not None and window is not None and longest >= window:
            what = f"a reply of {longest} tokens leaves no room for a prompt in a contextWindow of {window}"
            yield Problem((*path, "maxOutputTokens"), what, f"set less than {window}, or a larger contextWindow")


def judge_release(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A release of the pod where the journal does not survive it."""
    if subject.spec.limits.on_pause_timeout == "Release" and not scene.durable_journal:
        what = "Release needs a durable journal, and this installation has none: the run could not go on"
        yield Problem((*subject.path, "limits", "onPauseTimeout"), what, "set Abort, or install with a durable journal")


def judge_parse_error_cause(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A cause of retries that an autonomous agent does not have."""
    if subject.spec.mode == "Autonomous" and "ParseError" in subject.spec.retry.causes:
        what = "ParseError exists for mode: Completion only; an autonomous agent is told what was wrong instead"
        yield Problem((*subject.path, "retry", "causes"), what, "remove ParseError")


def judge_text_outcome(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """Fields of a JSON answer where the answer is text."""
    outcome = subject.spec.outcome
    if outcome.format != "Text":
        return
    for field, value in (("schema", outcome.schema_), ("map", outcome.map)):
        if value is not None:
            what = f"outcome.{field} reads a JSON answer, and outcome.format is Text"
            yield Problem((*subject.path, "outcome", field), what, "remove it, or set format: JSON")


def judge_wrap_up(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A wrap-up turn that there is no room for."""
    spec = subject.spec
    if spec.mode == "Autonomous" and spec.last_iteration == "WrapUp" and spec.limits.max_iterations == 1:
        what = "with maxIterations: 1 there is no wrap-up turn: calls of the only turn end in max_iterations"
        yield Problem((*subject.path, "limits", "maxIterations"), what, "set 2 or more, or lastIteration: Exit")


def judge_retry_deadline(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A deadline of all attempts that one attempt may spend."""
    retry = subject.spec.retry
    if retry.attempts == 1 or "Timeout" not in retry.causes:
        return
    for path, endpoint in subject.endpoints():
        seconds = endpoint.timeout_seconds
        if seconds >= retry.deadline_seconds:
            what = f"an attempt that takes {seconds} s is never retried within retry.deadlineSeconds"
            hint = f"set less than {retry.deadline_seconds}, or a longer retry.deadlineSeconds"
            yield Problem((*path, "timeoutSeconds"), f"{what} ({retry.deadline_seconds})", hint)


def judge_same_error(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A limit of recovery that the other one always comes before."""
    recovery = subject.spec.recovery
    if recovery.max_same_error > recovery.max_failing_batches:
        what = f"maxFailingBatches ({recovery.max_failing_batches}) ends the step before"
        yield Problem((*subject.path, "recovery", "maxSameError"), what, f"set at most {recovery.max_failing_batches}")


def judge_steering(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """An autonomous agent without instructions."""
    if subject.spec.mode == "Autonomous" and subject.spec.steering is None:
        yield Problem((*subject.path, "steering"), "an autonomous agent without steering has no instructions", "set it")


def judge_tool_timeout(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A step's own deadline that the deadline of its tool call cuts off."""
    for path, tool in subject.tools():
        general = subject.spec.limits.tool_timeout_seconds
        bound = min(tool.timeout_seconds or general, general)
        for field, call in _timed_calls(tool):
            if call.timeout_seconds > bound:
                what = f"it is {call.timeout_seconds}, and a tool call is ended after {bound}, which ends the step too"
                yield Problem((*path, "inlineStep", field, "timeoutSeconds"), what, f"set less than {bound}")


def _timed_calls(tool: Tool) -> Iterator[tuple[str, APICall | FunctionCall | McpCall | ResourceCall]]:
    inline = tool.inline_step
    if inline is None:
        return
    for field, call in (
        ("apiCall", inline.api_call),
        ("function", inline.function),
        ("mcp", inline.mcp),
        ("resource", inline.resource),
    ):
        if call is not None:
            yield field, call


AGENT_CHECKS: tuple[Check[AgentSubject], ...] = (
    Check("ToolWithoutDescription", "Error", judge_descriptions),
    Check("AgentReachesItself", "Error", judge_own_agent),
    Check("ToolAgentNotFound", "Error", judge_unknown_agent),
    Check("BudgetWithoutOutputTokens", "Error", judge_output_tokens),
    Check("BudgetWithoutPrice", "Error", judge_price),
    Check("ReplyFillsContextWindow", "Error", judge_window),
    Check("ReleaseWithoutDurableJournal", "Error", judge_release),
    Check("ParseErrorOfAutonomous", "Error", judge_parse_error_cause),
    Check("JsonOutcomeOfText", "Error", judge_text_outcome),
    Check("NoRoomForWrapUp", "Warning", judge_wrap_up),
    Check("TimeoutIsNeverRetried", "Warning", judge_retry_deadline),
    Check("SameErrorNeverCounts", "Warning", judge_same_error),
    Check("SteeringMissing", "Warning", judge_steering),
    Check("ToolTimeoutCutsStep", "Warning", judge_tool_timeout),
)
