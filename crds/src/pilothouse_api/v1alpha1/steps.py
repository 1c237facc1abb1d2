"""Parameters of the step kinds that are no agents; used by workflow steps and by tools."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pilothouse_api.v1alpha1.base import JsonObject, JsonValue, Model, Rule
from pilothouse_api.v1alpha1.common import (
    ArtifactRef,
    Cel,
    Headers,
    Line,
    LocalRef,
    Name,
    Path,
    Retry,
    Signal,
    TextSource,
    Url,
    one_of,
)

ContextKey = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]


class Extract(Model):
    """Copies a part of a response into the context."""

    path: Path
    """Path in the JSON body."""
    as_: Annotated[ContextKey, Field(alias="as")]
    """Context key that is set."""


class APICall(Model):
    """One HTTP call."""

    RULES: ClassVar = (
        Rule(
            "!has(self.retry) || !has(self.retry.causes) || !('ParseError' in self.retry.causes)",
            "retry.causes of an APICall are Timeout and Error",
            field_path=".retry",
        ),
    )

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    """HTTP method."""
    url: Url
    """Address, a template; values are percent-encoded."""
    headers: Headers = []
    """Headers; values are templates."""
    query: Annotated[dict[str, Annotated[str, Field(max_length=2048)]], Field(max_length=32)] = {}
    """Query parameters; values are templates."""
    body: JsonValue | None = None
    """Body: a JSON value is sent as JSON with templates filled in its strings; a string is sent as text."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Deadline of one attempt; missing it is an error of the call."""
    output: ContextKey | None = None
    """Context key of the response body (JSON where it is JSON, else text); default `<step id>_result`."""
    extract: Annotated[list[Extract], Field(max_length=32)] = []
    """Parts of the body that get context keys of their own."""
    retry: Retry | None = None
    """Retries; only of calls that may be repeated (engine.md §10)."""


class ServiceAccountTokenAuth(Model):
    """A projected token of the run's ServiceAccount."""

    audience: Annotated[str, Field(min_length=1, max_length=253)]
    """Audience of the token; 600 s, bound to the pod."""


class McpAuth(Model):
    """How the runner shows who it is."""

    service_account_token: ServiceAccountTokenAuth
    """A projected token."""


class McpServer(Model):
    """One MCP server."""

    RULES: ClassVar = (
        Rule("has(self.transport) != has(self.artifact)", "set transport, or artifact alone"),
        Rule(
            "(has(self.transport) && self.transport == 'StreamableHTTP') == has(self.url)",
            "transport: StreamableHTTP needs url",
        ),
        Rule(
            "(has(self.transport) && self.transport == 'Stdio') == has(self.command)", "transport: Stdio needs command"
        ),
        Rule(
            "!has(self.artifact) || (!has(self.headers) && !has(self.auth))",
            "headers and auth of a server that is an artifact stand in its text",
        ),
    )

    name: Name
    """Name; tools are called `<name>__<tool>`. Letters, digits, `-` and single `_`."""
    transport: Literal["StreamableHTTP", "Stdio"] | None = None
    """How it is reached."""
    url: Url | None = None
    """Address (StreamableHTTP); no template."""
    command: Annotated[list[Line], Field(min_length=1, max_length=32)] | None = None
    """Program and arguments in the runner image (Stdio); it sees the variables that `runTemplate.env` names, and none
    of the runner's files."""
    headers: Headers = []
    """Headers (StreamableHTTP), read anew for each request; values are sent as they are."""
    auth: McpAuth | None = None
    """Credentials (StreamableHTTP)."""
    required: bool = True
    """Whether the step ends when the server cannot list its tools; one that is not required is left out then."""
    artifact: ArtifactRef | None = None
    """A server that is kept as an artifact of type mcp, `name@version`: a YAML object of `transport`, `url`, `command`,
    `headers` and `auth`."""

    def source(self) -> TextSource:
        """Return where the server of an artifact comes from."""
        return TextSource(artifact=self.artifact)


class McpCall(Model):
    """One tool of an MCP server."""

    server: McpServer
    """The server."""
    tool: Annotated[str, Field(min_length=1, max_length=128)]
    """Name of the tool."""
    arguments: JsonObject = {}
    """Arguments; strings are templates."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Deadline of the call."""
    output: ContextKey | None = None
    """Context key of the result; default `<step id>_result`."""


class ResourceCall(Model):
    """One call to the Kubernetes API, under the run's own ServiceAccount."""

    RULES: ClassVar = (
        Rule(
            "self.operation in ['List', 'Create'] || has(self.name)",
            "operations Get, Patch and Delete need name",
        ),
        Rule(
            "(self.operation in ['Create', 'Patch']) == has(self.body)",
            "operations Create and Patch need body, the others take none",
        ),
    )

    operation: Literal["Get", "List", "Create", "Patch", "Delete"]
    """What is done."""
    api_version: Annotated[
        str, Field(min_length=1, max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z][a-z0-9]*$")
    ]
    """API version of the object: `v1`, `apps/v1`."""
    kind: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """Kind of the object."""
    name: Annotated[str, Field(max_length=253)] | None = None
    """Name, a template; of Create: default `body.metadata.name`, or `generateName` with an end of its own."""
    namespace: Annotated[str, Field(max_length=253)] | None = None
    """Namespace, a template; default: the run's."""
    label_selector: Line | None = None
    """Selector of List, a template; a value that fills in a part of it holds letters, digits, `-`, `_`, `.`, `/`."""
    body: JsonObject | None = None
    """Object (Create) or merge-patch (Patch); strings are templates. Create sets apiVersion, kind and name."""
    timeout_seconds: Annotated[int, Field(ge=1, le=300)] = 30
    """Deadline of the call."""
    output: ContextKey | None = None
    """Context key of the answer; default `<step id>_result`."""


class RouterCondition(Model):
    """One branch of a Router."""

    cel: Cel
    """A CEL expression over `context`."""
    signal: Signal
    """Signal when it is true."""


class Router(Model):
    """Chooses a signal from the context."""

    RULES: ClassVar = (one_of("match", "conditions"),)

    match: Path | None = None
    """A path; the value found there is the signal."""
    conditions: Annotated[list[RouterCondition], Field(min_length=1, max_length=32)] | None = None
    """Judged in order; the first that is true gives the signal, none: `default`."""


class FunctionCall(Model):
    """A Python callable, run in a child process without token, keys and secrets."""

    callable: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")]
    """`module:function`; called with one dict, returns a dict, a signal (str), or both as a tuple."""
    source: TextSource | None = None
    """Source text of the module; else it comes from the runner image."""
    arguments: JsonObject | None = None
    """What it is called with; strings are templates. Default: the public context."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Deadline; past it the child is killed and the step is an error."""
    output: ContextKey | None = None
    """Context key of the returned dict; default: its keys are merged into the context."""


class Response(Model):
    """Sets the run's result."""

    mapping: Annotated[dict[str, Path], Field(min_length=1, max_length=64)]
    """Keys of the result, each set from a path in the context."""


class Approval(Model):
    """Asks a person."""

    title: Annotated[str, Field(min_length=1, max_length=253)]
    """The question, a template."""
    show: Annotated[list[Path], Field(max_length=32)] = []
    """Paths in the context that the person sees."""
    expires_seconds: Annotated[int, Field(ge=1, le=2_592_000)] = 86400
    """How long it waits, wall time."""


class Delegate(Model):
    """Runs another Workflow or Agent as a child and waits."""

    RULES: ClassVar = (one_of("workflowRef", "agentRef"),)

    workflow_ref: LocalRef | None = None
    """The Workflow."""
    agent_ref: LocalRef | None = None
    """The Agent."""
    input: JsonObject = {}
    """Input of the child; strings are templates."""
