"""Ports of the engine: what it asks of the world, as values and protocols.

Expected failures are values (`ModelFailure`, `HttpFailure`, …); an exception out of a port is a fault: the attempt
dies and the next one resumes. Each port has a fake in `pilothouse_engine.testing` and one contract suite that the
fake and the real adapters pass.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import field

from pilothouse_api.structs import (
    Barrier,
    ChildReport,
    Control,
    McpServer,
    ModelEndpoint,
    RunLimits,
    Snapshot,
    SupervisionClock,
)
from pilothouse_engine.values import Value

# ---------------------------------------------------------------- models


class RequestedCall(Value):
    """One tool call as the model asked for it.

    `provider_id` is the provider's id, kept only to talk to that provider (never None after the adapter: a missing,
    empty or repeated one is replaced by a unique one). `arguments` is the raw text; an object is re-encoded as JSON.
    """

    provider_id: str
    name: str
    arguments: str


class Message(Value):
    """One message of a prompt.

    `calls` belong to assistant messages, `provider_id` and `name` to tool messages. `raw`, where it is set, is
    what the adapter of the reply wants back with it (thinking, signatures); only an adapter reads it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: tuple[RequestedCall, ...] = ()
    provider_id: str = ""
    name: str = ""
    raw: Mapping[str, Any] | None = None


class ToolSpec(Value):
    """One tool as it is offered to the model; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ModelRequest(Value):
    """One attempt of one model call.

    `step`, `turn` and `script` serve the scripted model: `script` is the text of the endpoint's script, `marks` are
    the entries of that script that this run has already played (from the journal). `tools` is empty when tools are
    off. `left_out` are the provider's ids of earlier calls that this prompt does not show, but a later one may: a reply
    must not use them again. `response_format` is the form of the answer as OpenAI's protocol states it.
    """

    endpoint: ModelEndpoint
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    step: str = ""
    turn: int = 0
    script: str | None = None
    marks: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    response_format: Mapping[str, Any] | None = None


class Usage(Value):
    """Tokens of one call; None where the provider did not say, or said something absurd."""

    input: int | None = None
    output: int | None = None


class ModelReply(Value):
    """What the model answered; its texts, names and arguments hold no half of a surrogate pair.

    `finish` is `Length` for every provider's word for a cut reply, and when the arguments of a call were cut.
    `mark` is the entry of the script that was played.
    """

    text: str = ""
    calls: tuple[RequestedCall, ...] = ()
    finish: Literal["Stop", "Length"] = "Stop"
    usage: Usage = Usage()
    raw: Mapping[str, Any] | None = None
    mark: int | None = None


FailureKind = Literal[
    "Timeout",  # retried
    "Connection",  # retried
    "RateLimited",  # 429, 408, 409: retried, Retry-After honoured
    "ServerError",  # 5xx: retried
    "Garbage",  # not a reply of the protocol (HTML, cut JSON, an error in status 200 that names no kind): retried
    "Authentication",  # 401, 403, and a key that cannot be read
    "InvalidRequest",  # other 4xx
    "ContextWindowExceeded",  # the prompt is too long
    "Refused",  # the provider's own policy
    "ScriptSpent",  # the scripted model has no entry left that matches
]

RETRIED_FAILURES: frozenset[FailureKind] = frozenset({"Timeout", "Connection", "RateLimited", "ServerError", "Garbage"})


class ModelFailure(Value):
    """Why an attempt gave no reply. `message` is safe to show: no key, no prompt, at most 500 characters.

    `sent`: the provider may have worked on it and may charge for it, so the call's hold stands (a Timeout and Garbage
    count as sent whatever this says).
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after: float | None = None
    mark: int | None = None
    sent: bool = False


class Model(Protocol):
    """Makes one attempt of a model call; never retries by itself; ends within `endpoint.timeout_seconds`."""

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        """Return the reply or why there is none."""
        ...

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        """Return US dollars per million (input, output) tokens, or None where the price is not known."""
        ...

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        """Return the context window in tokens, or None where it is not known."""
        ...


# ---------------------------------------------------------------- tools


class HttpRequest(Value):
    """One HTTP request; `timeout` in seconds covers all of it; `max_bytes` bounds the body while it is read."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    timeout: float = 30.0
    max_bytes: int = 1_048_576


class HttpResponse(Value):
    """What came back, whatever its status. Redirects are not followed across hosts."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class HttpFailure(Value):
    """Why nothing came back. `sent`: bytes may have reached the server, so an effect may have happened."""

    kind: Literal["Timeout", "Connection", "TooLarge", "Blocked", "Invalid"]
    message: str
    sent: bool


class Http(Protocol):
    """Sends one HTTP request; never retries."""

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Return the response or why there is none; cancellation closes the connection."""
        ...


class FunctionRequest(Value):
    """A Python callable to run in a child process; `source` is the module's text, else it is importable."""

    callable: str
    arguments: Mapping[str, Any]
    source: str | None = None
    timeout: float = 30.0
    max_bytes: int = 1_048_576


class FunctionReply(Value):
    """What it returned: a dict, a signal, or both."""

    output: Mapping[str, Any] | None = None
    signal: str | None = None


class FunctionFailure(Value):
    """Why it returned nothing; `Raised` carries the exception's type and text, never a traceback.

    After a Timeout, and where it Died, nobody knows how far it came; NotStarted: nothing of it ran.
    """

    kind: Literal["Timeout", "Raised", "Invalid", "TooLarge", "Died", "NotStarted"]
    message: str


class Functions(Protocol):
    """Runs author code in a child process without token, keys and secrets, killed at its timeout."""

    async def run(self, request: FunctionRequest) -> FunctionReply | FunctionFailure:
        """Return what the callable returned or why it returned nothing."""
        ...


class McpTool(Value):
    """One tool as its server lists it: hostile text, bounded in bytes only; `mcp.tools` makes an offer of it.

    The server's own hints (`readOnlyHint` and the like) are left out: they are never trusted.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


class McpListing(Value):
    """All the tools that a server lists, in its order."""

    tools: tuple[McpTool, ...]


class McpResult(Value):
    """What a tool gave: texts joined, other blocks named; `is_error` is the tool's own word.

    `structured` is the JSON value that the tool gave beside or instead of its text, None where there is none. Together
    they are no larger than the call's `max_bytes`.
    """

    text: str
    structured: Any = None
    is_error: bool = False


class McpFailure(Value):
    """Why a server gave no listing or no result.

    `message` is safe to show: no credential, nothing of the server's, at most 500 characters. `detail` is what the
    server said of it (JsonRpc only), bounded, with credentials masked, and to be treated like a result. `sent`: the
    request may have reached the server and it did not answer it, so an effect may have happened.
    """

    kind: Literal[
        "Timeout",
        "Connection",  # the server cannot be reached, or went away
        "Unavailable",  # it refuses to serve, its program cannot be started, or its address is refused
        "Credentials",  # they cannot be read (nothing was sent then), or the server refuses them
        "Protocol",  # what came is not MCP, or of a version that is not spoken
        "TooLarge",
        "JsonRpc",  # the server's own error answer
    ]
    message: str
    sent: bool = False
    detail: str = ""


class Mcp(Protocol):
    """Speaks to MCP servers. One session for each server, opened when it is needed, kept until `end_visit`.

    Credentials are read anew for each request; when they cannot be read the server is not called. Cancellation tells
    the server and closes the session.
    """

    async def list_tools(self, server: McpServer, deadline: float) -> McpListing | McpFailure:
        """Return all tools of a server or why they cannot be told, within `deadline` seconds."""
        ...

    async def call_tool(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str | None,
        timeout: float,
        max_bytes: int,
    ) -> McpResult | McpFailure:
        """Return what a tool gave or why it gave nothing, within `timeout` seconds; never repeats what was sent."""
        ...

    async def end_visit(self) -> None:
        """Close the sessions; within a few seconds, whatever the servers do."""
        ...


ResourceOperation = Literal["Get", "List", "Create", "Patch", "Delete"]


class ResourceRequest(Value):
    """One call to the Kubernetes API, all templates filled in.

    `namespace` None is the run's own; it is not used for kinds that have none. `name` is empty for List alone. `body`
    is the whole object (Create) or a JSON merge patch (Patch). `max_bytes` bounds what is read, over all pages of a
    list.
    """

    operation: ResourceOperation
    api_version: str
    kind: str
    name: str = ""
    namespace: str | None = None
    label_selector: str = ""
    body: Mapping[str, Any] | None = None
    timeout: float = 30.0
    max_bytes: int = 1_048_576


class ResourceReply(Value):
    """What the API server gave: the object, or the list, without managed fields and with the data of Secrets masked."""

    value: Any


class ResourceFailure(Value):
    """Why the API server gave nothing.

    `message` is safe to show: it holds nothing of the server's and no name that could be data. `detail` is what the
    server said (empty where it could quote a Secret), to be treated like a result. `sent`: the request may have been
    carried out although there is no good answer.
    """

    kind: Literal[
        "NotFound",
        "Forbidden",  # by RBAC, an admission policy, a quota
        "Unauthorized",  # it does not know the run's token
        "AlreadyExists",
        "Conflict",  # the object was changed meanwhile
        "Invalid",  # the request or the object is refused as it is
        "UnknownKind",  # the API server serves no such kind
        "Throttled",
        "Unavailable",  # it answered that it cannot serve
        "Timeout",
        "Connection",
        "TooLarge",
        "NoCluster",  # there is no API server to ask
    ]
    message: str
    sent: bool = False
    detail: str = ""


class Resources(Protocol):
    """Reads and writes objects of the cluster, under the run's own ServiceAccount; its token is read anew each time.

    Only what certainly changed nothing (a read, a request that was never sent or was put off) is tried again, within
    the request's time.
    """

    async def call(self, request: ResourceRequest) -> ResourceReply | ResourceFailure:
        """Return what the API server gave or why it gave nothing, within `timeout` seconds."""
        ...


class SecretUnavailable(Exception):
    """A Secret's key cannot be read; the message names both."""


class Secrets(Protocol):
    """Reads secret values anew for each use."""

    def read(self, name: str, key: str) -> str:
        """Return the value; raises SecretUnavailable."""
        ...


# ---------------------------------------------------------------- durable state

RawEntry = Mapping[str, Any]
"""One journaled fact as a JSON object; `pilothouse_engine.facts` encodes and decodes it."""


class Fenced(Exception):
    """Another attempt has written: this one must stop and write nothing more."""


class JournalUnavailable(Exception):
    """The store cannot be reached or cannot write now; the same append may be tried again."""


class JournalCorrupt(Exception):
    """What was read is no journal; a person must look."""


class Journal(Protocol):
    """Append-only record of one run (engine.md §10)."""

    durable: bool
    """Whether it survives the process's machine: decides whether parks may be released."""

    async def read(self) -> Sequence[RawEntry]:
        """Return all entries, oldest first; raises JournalUnavailable, JournalCorrupt."""
        ...

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        """Add entries in one atomic step.

        Refused with Fenced when the journal does not hold exactly `expected_seq` entries, or a newer attempt has
        written. An append whose answer was lost is read back by the adapter, not repeated. JournalUnavailable when
        nothing is known to be written.
        """
        ...


class SessionKey(Value):
    """Which conversation: of one agent step, in one session of one namespace. Any of the three may hold any text."""

    namespace: str
    session: str
    step: str


class StoredSession(Value):
    """What is stored of a conversation; `version` counts what was stored, 0 where nothing ever was.

    `content` is the engine's (`pilothouse_engine.sessions.records`), a few MiB at most, and opaque to a store.
    """

    version: int = 0
    content: bytes = b""


SESSION_SECONDS = 30.0
"""How long a store may take to answer."""


class SessionsUnavailable(Exception):
    """The store of sessions cannot be reached, or cannot write now; the same may be asked again."""


class SessionCorrupt(Exception):
    """What was read is no conversation; a person must look. It is never taken for an empty one."""


class Sessions(Protocol):
    """Keeps conversations beyond the runs that they are made of (engine.md §11); answers within `SESSION_SECONDS`."""

    async def load(self, key: SessionKey) -> StoredSession:
        """Return what is stored, read now; raises SessionsUnavailable, SessionCorrupt."""
        ...

    async def replace(self, key: SessionKey, version: int, content: bytes) -> bool:
        """Store `content` as the next version, durable when this returns True.

        False, and nothing is stored, where what is stored is not of `version` any more. Raises SessionsUnavailable
        where it may or may not be stored: whoever asked loads and looks. Raises SessionCorrupt where what it would
        replace cannot be read.
        """
        ...


class Directives(Value):
    """What people ask of the run now, and what it has said of itself.

    `snapshot` is the published `status.run`, raw: an attempt compares its `journalLength` with the journal's.
    `children` are the children of the run that are known, by the id of the call that each does. They stand in the
    run's own object, because its one watch then wakes the run at a child's end, and its token needs no right to look
    at other runs.
    `barrier` is what Sync supervision asks of the run, `clock` how far it has seen it; `is_supervised` where anything
    watches the run. All three are of `status.supervision`, which the run cannot write.
    """

    uid: str
    generation: int
    control: Control | None = None
    limits: RunLimits | None = None
    deleting: bool = False
    snapshot: Mapping[str, Any] | None = None
    children: Mapping[str, ChildReport] = field(default_factory=dict)
    is_supervised: bool = False
    barrier: Barrier | None = None
    clock: SupervisionClock | None = None


def read_supervision(raw: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what `status.supervision` says to the run, as fields of Directives; raises ValueError.

    Who watches it, and what they did, is not the run's business and changes at every turn.
    """
    if not raw:
        return {}
    barrier, clock = raw.get("barrier"), raw.get("clock")
    return {
        "is_supervised": bool(raw.get("supervisors")) or barrier is not None,
        "barrier": None if barrier is None else Barrier.read(barrier),
        "clock": None if clock is None else SupervisionClock.read(clock),
    }


def supervision_key(raw: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return what of `status.supervision` wakes a run that waits: the rest of it changes at every turn."""
    if not raw:
        return ()
    barrier, clock = raw.get("barrier") or {}, raw.get("clock") or {}
    return (bool(raw.get("supervisors")), *sorted(barrier.items()), clock.get("journalLength"))


class StoreFailure(Value):
    """Why the run's object could not be read or written.

    `Gone`: it does not exist or has another uid. `Fenced`: a newer attempt owns it. `Forbidden`: a wrong role.
    `Unavailable`: no answer, or 5xx, 429. `Refused`: the object itself was refused (too large, invalid).
    """

    kind: Literal["Gone", "Fenced", "Forbidden", "Unavailable", "Refused"]
    message: str


class RunStore(Protocol):
    """The run's object: directives in, snapshots out."""

    async def read(self) -> Directives | StoreFailure:
        """Return the newest directives, read now."""
        ...

    async def publish(self, snapshot: Snapshot) -> StoreFailure | None:
        """Replace the snapshot; None when it is stored."""
        ...

    async def wait(self, timeout: float) -> None:
        """Return when the object may have changed since the last read, or after `timeout` seconds."""
        ...


# ---------------------------------------------------------------- progress, time

Frame = Mapping[str, Any]
"""One loop fact for viewers (engine.md §16): `kind`, `turn`, `time` and the fields of its kind."""


class FrameSink(Protocol):
    """Shows progress. A broken or slow one never touches the loop."""

    def emit(self, frame: Frame) -> None:
        """Take a frame; returns at once and raises nothing."""
        ...


class Clock(Protocol):
    """Time."""

    def now(self) -> datetime:
        """Return the wall time, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class Ports(Value):
    """All that the engine may touch."""

    model: Model
    http: Http
    functions: Functions
    mcp: Mcp
    resources: Resources
    secrets: Secrets
    journal: Journal
    store: RunStore
    frames: FrameSink
    clock: Clock
    sessions: Sessions | None = None
    """None where this host keeps no conversations: no run of it has a session."""
