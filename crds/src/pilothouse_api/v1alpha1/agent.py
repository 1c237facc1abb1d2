"""Agent: one bounded LLM step: model, tools, exits, limits, gates."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pilothouse_api.effects import Effect
from pilothouse_api.v1alpha1.base import JsonObject, Model, Rule, StatusModel, list_map, list_set
from pilothouse_api.v1alpha1.common import (
    ArtifactRef,
    Conditions,
    ConfigMapKeyRef,
    Hooks,
    Line,
    LocalRef,
    Money,
    Name,
    Path,
    Policy,
    Retry,
    SecretKeyRef,
    Text,
    TextSource,
    Url,
    discriminated,
    one_of,
)
from pilothouse_api.v1alpha1.steps import (
    APICall,
    FunctionCall,
    McpCall,
    McpServer,
    ResourceCall,
    Router,
)


class Price(Model):
    """What a model costs; overrides the table of LiteLLM."""

    input_per_million_usd: Annotated[Money, Field(alias="inputPerMillionUSD")]
    """US dollars for a million input tokens."""
    output_per_million_usd: Annotated[Money, Field(alias="outputPerMillionUSD")]
    """US dollars for a million output tokens."""


class ModelEndpoint(Model):
    """A model and how it is reached."""

    RULES: ClassVar = (
        Rule(
            "(self.name == 'scripted') == has(self.script)",
            "name: scripted needs script, and only it takes one",
            field_path=".script",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """A LiteLLM model string (`openai/gpt-4.1-mini`), or `scripted` for the scripted model."""
    script: TextSource | None = None
    """The script that the scripted model plays."""
    api_base: Url | None = None
    """Base address of an OpenAI-compatible endpoint, or of the provider's API."""
    api_key_secret_ref: SecretKeyRef | None = None
    """The key of the endpoint."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature; the provider's default where unset."""
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Longest reply, in tokens. Required where a token budget is set."""
    context_window: Annotated[int, Field(ge=1024, le=100_000_000)] | None = None
    """Context window in tokens; else from LiteLLM's table, else unknown: prompts stay under about 52,000 tokens."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Deadline of one attempt of a call."""
    price: Price | None = None
    """Price; overrides LiteLLM's table."""


class AgentModel(ModelEndpoint):
    """The model of an agent, with its fallbacks."""

    fallbacks: Annotated[list[ModelEndpoint], Field(max_length=4)] = []
    """Tried in order, each with attempts of its own, when the attempts of the one before are spent."""


class Skill(Model):
    """Instructions that apply when they are relevant."""

    RULES: ClassVar = (one_of("inline", "configMapKeyRef", "artifact"),)

    name: Name
    """Name, shown to the model."""
    inline: Text | None = None
    """The text itself."""
    config_map_key_ref: ConfigMapKeyRef | None = None
    """A key of a ConfigMap that holds the text."""
    artifact: ArtifactRef | None = None
    """An artifact of type skill, `name@version`."""

    def source(self) -> TextSource:
        """Return where the text comes from."""
        return TextSource(inline=self.inline, config_map_key_ref=self.config_map_key_ref, artifact=self.artifact)


class McpTools(Model):
    """Tools of an MCP server."""

    server: Name
    """Name of an entry of mcpServers."""
    allow: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=128)]],
        Field(min_length=1, max_length=64),
        list_set(),
    ]
    """Names of the tools that may be called; `["*"]` allows all of them."""


class InlineStep(Model):
    """A step that exists only as a tool; Agent, Approval, Delegate and Response steps cannot be tools."""

    RULES: ClassVar = (
        discriminated(
            "kind",
            {
                "APICall": "apiCall",
                "MCP": "mcp",
                "Resource": "resource",
                "Router": "router",
                "Function": "function",
            },
        ),
    )

    kind: Literal["APICall", "MCP", "Resource", "Router", "Function"]
    """What it does."""
    api_call: APICall | None = None
    """Parameters of APICall."""
    mcp: McpCall | None = None
    """Parameters of MCP."""
    resource: ResourceCall | None = None
    """Parameters of Resource."""
    router: Router | None = None
    """Parameters of Router."""
    function: FunctionCall | None = None
    """Parameters of Function."""


class Tool(Model):
    """One thing that the model may do."""

    RULES: ClassVar = (
        one_of("step", "inlineStep", "mcp", "agentRef"),
        Rule(
            "!self.name.contains('__') && !(self.name in ['read_tool_result', 'update_plan'])"
            " && !(self.name.startsWith('start_') && self.name.endsWith('_task'))",
            "a tool's name cannot contain __, and read_tool_result, update_plan and start_…_task are the engine's",
            field_path=".name",
        ),
        Rule("!has(self.parameters) || !has(self.mcp)", "tools of an MCP server bring their own parameters"),
    )

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")]
    """Name that the model calls it by."""
    description: Line | None = None
    """What it does, for the model; here or on the step, and this one wins."""
    parameters: JsonObject | None = None
    """JSON Schema of the arguments; else derived from the step."""
    step: Name | None = None
    """A step of the same workflow."""
    inline_step: InlineStep | None = None
    """A step that is written here."""
    mcp: McpTools | None = None
    """Tools of an MCP server."""
    agent_ref: LocalRef | None = None
    """Another Agent, run as a child with a pod of its own."""
    effect: Effect | None = None
    """What a call does outside; default: the step's, else Once."""
    writes_context: bool = False
    """Whether what the step changed is merged into the run's context."""
    background: bool = False
    """Also offer `start_<name>_task`, which returns at once."""
    approval: Literal["Never", "Always"] = "Never"
    """Whether each call waits for a person."""
    max_calls: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Most calls in one visit; of an `mcp` entry, of all the tools that it allows together."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    """Deadline of one call; the smaller of this and toolTimeoutSeconds holds, and missing it is fatal."""


class Outcome(Model):
    """How the step ends."""

    RULES: ClassVar = (
        Rule(
            "!has(self.enum) || self.enum.all(s, !s.startsWith('_') && !(s in ['max_iterations', 'budget_exceeded',"
            " 'error', 'aborted', 'guardrail_violation', 'policy_denied', 'unrecoverable', 'default', 'end']))",
            "outcome.enum cannot hold reserved exits, default, end, or names that begin with _",
            field_path=".enum",
        ),
        Rule(
            "!has(self.enum) || self.enum.all(s, !(s in ['on', 'off', 'yes', 'no', 'y', 'n', 'true', 'false']))",
            "YAML turns this word into a boolean: quote it and choose another word",
            field_path=".enum",
        ),
    )

    enum: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z][a-z0-9_]*$")]],
            Field(min_length=1, max_length=32),
            list_set(),
        ]
        | None
    ) = None
    """The exits that the model chooses from; each becomes a signal."""
    write: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")] | None = None
    """Context key of the payload; default `<step id>_result`."""
    format: Literal["JSON", "Text"] | None = None
    """Form of a completion's answer; default JSON."""
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    """JSON Schema of the payload."""
    map: Annotated[dict[str, Path], Field(max_length=32)] | None = None
    """Completion only: context keys, each set from a path in the answer."""


class AgentLimits(Model):
    """Bounds of one visit of the step."""

    max_iterations: Annotated[int, Field(ge=1, le=1000)] = 8
    """Most model calls."""
    token_budget: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Most tokens, input and output."""
    cost_budget_usd: Annotated[Money | None, Field(alias="costBudgetUSD")] = None
    """Most US dollars."""
    max_tool_calls: Annotated[int, Field(ge=1, le=10000)] = 24
    """Most tool calls; one more ends the step."""
    max_parallel_tool_calls: Annotated[int, Field(ge=1, le=32)] = 1
    """Most ReadOnly calls in a row that run at once."""
    tool_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 300
    """Deadline of one tool call; missing it ends the step."""
    max_tool_result_chars: Annotated[int, Field(ge=200, le=200_000)] = 8000
    """Longest tool result that the model sees; the rest is read with read_tool_result."""
    pause_seconds: Annotated[int, Field(ge=0, le=604_800)] = 300
    """How long a paused run keeps its pod."""
    on_pause_timeout: Literal["Release", "Abort"] | None = None
    """What happens then; default: Release where the journal is durable, else Abort."""


class RegexDeny(Model):
    """Refuses text that matches."""

    patterns: Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(min_length=1, max_length=32)]
    """Regular expressions (RE2)."""


class MaxChars(Model):
    """Refuses text that is longer."""

    limit: Annotated[int, Field(ge=1, le=10_000_000)]
    """Most characters."""


class JsonSchemaCheck(Model):
    """Refuses text that is not JSON of this shape."""

    schema_: Annotated[JsonObject, Field(alias="schema")]
    """The JSON Schema."""


class PiiMask(Model):
    """Masks personal data; never refuses."""

    entities: Annotated[
        list[Literal["Email", "CreditCard", "Phone", "Iban"]], Field(min_length=1, max_length=8), list_set()
    ]
    """What is masked."""


class SecretMask(Model):
    """Masks keys and tokens; never refuses."""


class LlmJudge(Model):
    """Asks the step's own model."""

    criteria: TextSource
    """What must hold."""
    on_error: Literal["Ignore", "Violation"] = "Ignore"
    """What a judge means that gives no verdict, or cannot be asked within the budgets."""


class PromptInjection(Model):
    """Finds text that tries to give orders."""

    action: Literal["Wrap", "Refuse"] = "Wrap"
    """What happens to it."""


class ArtifactCheck(Model):
    """Checks that are kept as an artifact of type guardrail: a YAML list as it stands in a gate, criteria inline."""

    ref: ArtifactRef
    """`name@version`."""


class GuardrailCheck(Model):
    """One check of a gate."""

    RULES: ClassVar = (
        discriminated(
            "check",
            {
                "JsonSchema": "jsonSchema",
                "RegexDeny": "regexDeny",
                "MaxChars": "maxChars",
                "PiiMask": "piiMask",
                "LlmJudge": "llmJudge",
                "Artifact": "artifact",
            },
            optional={"SecretMask": "secretMask", "PromptInjection": "promptInjection"},
        ),
    )

    check: Literal[
        "JsonSchema",
        "RegexDeny",
        "MaxChars",
        "PiiMask",
        "SecretMask",
        "LlmJudge",
        "PromptInjection",
        "Artifact",
    ]
    """Which check."""
    json_schema: JsonSchemaCheck | None = None
    """Parameters of JsonSchema."""
    regex_deny: RegexDeny | None = None
    """Parameters of RegexDeny."""
    max_chars: MaxChars | None = None
    """Parameters of MaxChars."""
    pii_mask: PiiMask | None = None
    """Parameters of PiiMask."""
    secret_mask: SecretMask | None = None
    """Parameters of SecretMask (none)."""
    llm_judge: LlmJudge | None = None
    """Parameters of LlmJudge."""
    prompt_injection: PromptInjection | None = None
    """Parameters of PromptInjection."""
    artifact: ArtifactCheck | None = None
    """Parameters of Artifact."""


Gate = Annotated[list[GuardrailCheck], Field(max_length=16)]


class Guardrails(Model):
    """Checks at the three gates (engine.md §4)."""

    input: Gate = []
    """On the user text, before it is sent."""
    tools: Gate = []
    """On every observation, before the model sees it."""
    output: Gate = []
    """On the final text, before anything is merged."""


class Recovery(Model):
    """When failing tools end the step (engine.md §5)."""

    max_failing_batches: Annotated[int, Field(ge=1, le=100)] = 3
    """Batches with a counted error."""
    max_same_error: Annotated[int, Field(ge=1, le=100)] = 2
    """Batches with the same error."""


class AgentSpec(Model):
    """What an agent may do."""

    RULES: ClassVar = (
        Rule(
            "self.mode != 'Autonomous' || (has(self.tools) && self.tools.size() > 0)",
            "mode: Autonomous needs tools; an agent without tools is mode: Completion",
            field_path=".tools",
        ),
        Rule(
            "self.mode != 'Autonomous' || (!has(self.system) && !has(self.prompt))",
            "system and prompt belong to mode: Completion; mode: Autonomous takes steering",
        ),
        Rule(
            "self.mode != 'Completion' || has(self.prompt)",
            "mode: Completion needs prompt",
            field_path=".prompt",
        ),
        Rule(
            "self.mode != 'Completion' || (!has(self.steering) && !has(self.tools) && !has(self.skills)"
            " && !has(self.mcpServers) && !(has(self.guardrails) && has(self.guardrails.tools)))",
            "mode: Completion takes system and prompt, not steering, skills, tools, mcpServers, guardrails.tools",
        ),
        Rule(
            "self.mode != 'Autonomous' || !has(self.outcome) || (!has(self.outcome.format) && !has(self.outcome.map))",
            "outcome.format and outcome.map belong to mode: Completion",
            field_path=".outcome",
        ),
        Rule(
            "self.mode != 'Autonomous' || !has(self.retry) || !has(self.retry.causes)"
            " || !('ParseError' in self.retry.causes)",
            "retry.causes: ParseError belongs to mode: Completion",
            field_path=".retry",
        ),
        Rule(
            "!has(self.limits) || !has(self.limits.tokenBudget) || has(self.model.maxOutputTokens)",
            "limits.tokenBudget needs model.maxOutputTokens: a call is reserved before it is made",
            field_path=".model",
        ),
    )

    description: Line | None = None
    """What the agent is for."""
    mode: Literal["Autonomous", "Completion"]
    """Autonomous: the bounded loop with tools. Completion: one call. Required, no default."""
    model: AgentModel
    """The model."""
    steering: TextSource | None = None
    """Instructions that always apply (Autonomous)."""
    skills: Annotated[list[Skill], Field(max_length=32), list_map("name")] = []
    """Instructions that apply when relevant (Autonomous)."""
    system: TextSource | None = None
    """System text (Completion), a template."""
    prompt: TextSource | None = None
    """User text (Completion), a template."""
    tools: Annotated[list[Tool], Field(max_length=64), list_map("name")] = []
    """The closed list of what the model may do (Autonomous)."""
    mcp_servers: Annotated[list[McpServer], Field(max_length=16), list_map("name")] = []
    """MCP servers that tools name."""
    outcome: Outcome = Field(default_factory=Outcome)
    """How the step ends."""
    limits: AgentLimits = Field(default_factory=AgentLimits)
    """Bounds of one visit."""
    last_iteration: Literal["WrapUp", "Exit"] = "WrapUp"
    """WrapUp: the last iteration has tools off and asks for an answer. Exit: it is like the others."""
    retry: Retry = Field(default_factory=Retry)
    """Retries of model calls."""
    context_injection: Annotated[list[Path], Field(max_length=32)] = []
    """Context keys that follow as untrusted material."""
    guardrails: Guardrails | None = None
    """Checks of what goes in and comes out."""
    policy: Policy = []
    """Deterministic rules on model and tool calls."""
    recovery: Recovery = Field(default_factory=Recovery)
    """When failing tools end the step."""
    hooks: Hooks = []
    """What is reported."""


class AgentStatus(StatusModel):
    """What the operator says about an agent."""

    observed_generation: int | None = None
    """Generation that was judged."""
    conditions: Conditions = []
    """Ready, Reconciling, Stalled, ReferencesResolved."""
    used_by: int | None = None
    """How many workflows refer to it."""
    warnings: Annotated[list[Line], Field(max_length=32)] = []
    """What is allowed but unwise."""
