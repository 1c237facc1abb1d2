"""Values that more than one kind uses: references, text sources, headers, policy, hooks, conditions."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pilothouse_api.v1alpha1.base import JsonObject, Model, Rule, StatusModel, list_map, list_set

Name = Annotated[str, Field(min_length=1, max_length=63)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
Identifier = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]
Signal = Annotated[str, Field(min_length=1, max_length=63)]
Path = Annotated[str, Field(min_length=1, max_length=253)]
Text = Annotated[str, Field(max_length=16384)]
Line = Annotated[str, Field(max_length=1024)]
Url = Annotated[str, Field(min_length=1, max_length=2048)]
Cel = Annotated[str, Field(min_length=1, max_length=4096)]
Money = Annotated[str, Field(max_length=24, pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?$")]
"""A decimal amount of US dollars, as a string so that adding never rounds."""


def one_of(*fields: str) -> Rule:
    """Return the rule of an "exactly one of" union."""
    set_ones = [f"has(self.{field})" for field in fields]
    return Rule(
        # The form for two is the cheaper one: headers of tools of inline agents stand 204,800 times in a workflow.
        rule=" != ".join(set_ones) if len(fields) == 2 else f"[{', '.join(set_ones)}].filter(x, x).size() == 1",
        message=f"set exactly one of: {', '.join(fields)}",
    )


def discriminated(tag: str, branches: Mapping[str, str], optional: Mapping[str, str] | None = None) -> Rule:
    """Return the rule of a discriminated union: `tag` names the one branch field that is set.

    `branches` are fields that their value of the tag needs; `optional` ones may be left out.
    A field goes with no other value than its own.
    """
    parts = [f"(self.{tag} == '{value}') == has(self.{field})" for value, field in branches.items()]
    parts += [f"(self.{tag} == '{value}' || !has(self.{field}))" for value, field in (optional or {}).items()]
    return Rule(
        rule=" && ".join(parts),
        message=f"set only the field that {tag} names: "
        + ", ".join(
            [f"{value} needs {field}" for value, field in branches.items()]
            + [f"{value} takes {field}" for value, field in (optional or {}).items()]
        ),
    )


def dns_label_name(kind: str, limit: int) -> Rule:
    """Return the rule that an object's name is a DNS label of at most `limit` characters."""
    return Rule(
        rule=f"self.metadata.name.size() <= {limit} && !self.metadata.name.contains('.')",
        message=f"the name of {kind} has {limit} characters at most and no dots: names of pods and runs are made of it",
    )


class LocalRef(Model):
    """A reference to an object of the same namespace."""

    name: ObjectName
    """Name of the object."""


class SecretKeyRef(Model):
    """One key of a Secret of the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key of the Secret's data."""


class ConfigMapKeyRef(Model):
    """One key of a ConfigMap of the same namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key of the ConfigMap's data."""


ArtifactRef = Annotated[str, Field(max_length=320, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(@[1-9][0-9]{0,8})?$")]
"""`name@version` of a ConfigMap that is labelled as an artifact; without a version the newest one is used."""


class TextSource(Model):
    """A text: written here, kept in a ConfigMap, or a versioned artifact."""

    RULES: ClassVar = (one_of("inline", "configMapKeyRef", "artifact"),)

    inline: Text | None = None
    """The text itself."""
    config_map_key_ref: ConfigMapKeyRef | None = None
    """A key of a ConfigMap that holds the text."""
    artifact: ArtifactRef | None = None
    """An artifact, `name@version`; pin the version, else the newest one is used and a warning says so."""


class ValueFrom(Model):
    """Where a secret value comes from."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret; reaches the runner as a file and is read anew for each request."""


class Header(Model):
    """One HTTP header."""

    RULES: ClassVar = (one_of("value", "valueFrom"),)

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
    """Name of the header."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Value, a template."""
    value_from: ValueFrom | None = None
    """Source of a secret value: the whole header value, scheme included (`Bearer …`)."""


Headers = Annotated[list[Header], Field(max_length=32), list_map("name")]


class Retry(Model):
    """Retries of a model call or an APICall step (engine.md §5, §10)."""

    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Attempts in all, the first one included."""
    causes: Annotated[list[Literal["Timeout", "Error", "ParseError"]], Field(max_length=3), list_set()] = [
        "Timeout",
        "Error",
    ]
    """What is retried. ParseError exists for completion agents only."""
    backoff_seconds: Annotated[int, Field(ge=0, le=300)] = 1
    """Wait before the second attempt; doubles each time."""
    max_backoff_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    """Longest wait between two attempts; a Retry-After of the server is honoured up to the total deadline."""
    deadline_seconds: Annotated[int, Field(ge=1, le=3600)] = 300
    """Total time of all attempts and waits."""


class PolicyHttp(Model):
    """A policy endpoint in OPA's shape."""

    url: Url
    """Where `{"input": …}` is posted; answers `{"result": true | false | {"verdict", "message"}}`."""
    timeout_seconds: Annotated[int, Field(ge=1, le=5)] = 2
    """Deadline of one question; past it the call is denied."""


class PolicyRule(Model):
    """One deterministic, fail-closed rule."""

    RULES: ClassVar = (
        one_of("cel", "http"),
        Rule(
            "has(self.cel) == has(self.verdict)",
            "verdict belongs beside cel (Allow, Deny or RequireApproval); an http endpoint answers with its own",
        ),
        Rule(
            "self.at != 'ModelCall' || !has(self.verdict) || self.verdict != 'RequireApproval'",
            "at: ModelCall takes the verdicts Allow and Deny only",
        ),
    )

    name: Name
    """Name of the rule; stands in verdicts and metrics."""
    at: Literal["ModelCall", "ToolCall"]
    """What is judged."""
    cel: Cel | None = None
    """A CEL expression; the rule matches when it is true; one that fails denies. `args` are the arguments of a tool's
    call; of a step of the graph with an effect its inputs, templates filled in: method, url and body of an APICall,
    the arguments of a Function or MCP call, the input of a Delegate, else its own fields."""
    http: PolicyHttp | None = None
    """An endpoint that is asked instead."""
    verdict: Literal["Allow", "Deny", "RequireApproval"] | None = None
    """What a match of `cel` means."""
    message: Line | None = None
    """What the model and people are told."""


Policy = Annotated[list[PolicyRule], Field(max_length=32), list_map("name")]


class NotifyAction(Model):
    """A hook's notification."""

    step: Name
    """An APICall step of the workflow that is run on a copy of the payload: its templates name hook, event, workflow,
    run, step, tool, signal, error.type and error.message."""


class Hook(Model):
    """Something observed and reported; never changes context, prompt or flow (engine.md §15)."""

    RULES: ClassVar = (
        Rule(
            "has(self.event) == has(self.action) && has(self.event) != has(self.artifact)",
            "set event and action, or artifact alone",
        ),
        Rule(
            "(has(self.action) && self.action == 'Notify') == has(self.notify)",
            "set notify exactly when action is Notify",
        ),
    )

    event: Literal["BeforeStep", "AfterStep", "BeforeTool", "AfterTool", "OnError"] | None = None
    """When it fires; OnError: the step's signal is `error`."""
    action: Literal["Log", "Metric", "Notify"] | None = None
    """What it does, besides being counted: nothing (Metric), a line in the runner's log, or a call."""
    notify: NotifyAction | None = None
    """Parameters of Notify."""
    artifact: ArtifactRef | None = None
    """Hooks that are kept as an artifact of type hook, `name@version`: a YAML list of what stands here."""

    def source(self) -> TextSource:
        """Return where the hooks of an artifact come from."""
        return TextSource(artifact=self.artifact)


Hooks = Annotated[list[Hook], Field(max_length=16)]


class ResourceRequirements(Model):
    """Compute resources of the runner container."""

    requests: JsonObject | None = None
    """Requests, as in a container: cpu, memory, ephemeral-storage, …"""
    limits: JsonObject | None = None
    """Limits, as in a container."""


class ActionCounts(StatusModel):
    """What supervision did, counted."""

    pause: int = 0
    """Pauses."""
    steer: int = 0
    """Steers."""
    abort: int = 0
    """Aborts."""


class Condition(StatusModel):
    """A condition in the form of Kubernetes' `metav1.Condition`."""

    type: Annotated[str, Field(max_length=316)]
    """What it is about."""
    status: Annotated[str, Field(max_length=16)]
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """The cause, one PascalCase word."""
    message: Annotated[str, Field(min_length=1, max_length=32768)]
    """One sentence for a person: what, and what to do."""
    observed_generation: int | None = None
    """Generation of the object that was judged."""
    last_transition_time: Annotated[str, Field(max_length=64)]
    """When `status` last changed, RFC 3339."""


Conditions = Annotated[list[Condition], Field(max_length=32), list_map("type")]
