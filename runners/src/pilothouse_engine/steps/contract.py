"""What the loop asks of a step's executor, and what comes back.

The same executor serves a step of the graph and a step that is used as a tool; the loop owns everything around it:
journal, effects, context, deadlines of tools, routes.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from msgspec import field

from pilothouse_api.crossing import Written
from pilothouse_engine.ports import Ports
from pilothouse_engine.settings import Settings
from pilothouse_engine.values import Value


class StepCall(Value):
    """One execution of a step's work, as a step of the graph or as a tool.

    `params` is the branch model of the kind (`APICall`, `Router`, `FunctionCall`, `Response`). `context` is what
    templates see: the public keys (a tool's arguments merged in) and the engine's own `_` keys; an executor never
    changes it. `may_repeat` is true when the effect is ReadOnly or Idempotent: only then an executor may retry.
    `idempotency_key` is None when the effect is ReadOnly; where there is one it is sent.
    `arguments` are a tool's own, as the model gave them; None for a step of the graph.
    `texts` holds resolved texts by `plan.text_key` (the source of a Function).
    """

    step_id: str
    kind: str
    params: Written
    context: Mapping[str, Any]
    namespace: str
    run: str
    idempotency_key: str | None
    may_repeat: bool
    settings: Settings
    arguments: Mapping[str, Any] | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


class StepDone(Value):
    """The work ended with a signal.

    `writes` is the delta of public context keys, `output` the declared output (what a model sees of a tool that
    writes nothing). `error_type` (a PascalCase cause) and `error_message` (no secret, no text of a body) are set
    exactly when the work failed: the signal is `error`, or one that a Resource has for a failure. `engine_writes` are
    `_` keys, `result` is the run's result (Response).
    """

    signal: str
    writes: Mapping[str, Any]
    output: Any
    error_type: str | None = None
    error_message: str | None = None
    engine_writes: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None


class StepUnknown(Value):
    """Nobody knows what it did: the transport failed after bytes were sent, and the call may not be repeated."""

    message: str


StepEnd = StepDone | StepUnknown
StepRun = Coroutine[Any, Any, StepEnd]


class StepExecutor(Protocol):
    """Does the work of one step kind; raises only for faults; cancellation stops the work."""

    def __call__(self, call: StepCall, ports: Ports) -> StepRun:
        """Return the work, which returns how it ended."""
        ...
