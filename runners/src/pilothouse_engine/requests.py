"""Model calls on their way out and back: the request, and the calls of a reply with ids of the engine's own."""

from collections.abc import Container

from pilothouse_engine.actions import CallModel
from pilothouse_engine.executions import arguments_digest, call_id
from pilothouse_engine.facts import AskedCall
from pilothouse_engine.ports import Message, ModelRequest, RequestedCall
from pilothouse_engine.state import RunState, Visit


def build_request(state: RunState, action: CallModel) -> ModelRequest:
    """Return the request of one attempt; the pinned note joins the system text of this request alone."""
    visit = state.visit
    assert visit is not None
    started = action.started
    return ModelRequest(
        endpoint=action.endpoint,
        messages=_messages(visit, started.endpoint, action.pinned),
        tools=action.tools,
        step=visit.step,
        turn=started.turn,
        script=action.script,
        marks=tuple(state.marks.get(started.script, ())) if started.script is not None else (),
    )


def _messages(visit: Visit, endpoint: int, pinned: str | None) -> tuple[Message, ...]:
    messages = tuple(visit.messages)
    if any(source != endpoint for source in visit.raw_from.values()):
        # A provider's own form of a message is understood by that provider only.
        messages = tuple(
            Message(m.role, m.text, m.calls, m.provider_id, m.name)
            if visit.raw_from.get(i, endpoint) != endpoint
            else m
            for i, m in enumerate(messages)
        )
    if pinned is None:
        return messages
    head = messages[0] if messages and messages[0].role == "system" else None
    if head is None:
        return (Message("system", pinned), *messages)
    return (Message("system", f"{head.text}\n\n{pinned}"), *messages[1:])


def asked_calls(turn: int, calls: tuple[RequestedCall, ...], declared: Container[str]) -> tuple[AskedCall, ...]:
    """Return the calls of a reply as they are journaled."""
    return tuple(_asked(turn, index, call, call.name in declared) for index, call in enumerate(calls))


def _asked(turn: int, index: int, call: RequestedCall, is_declared: bool) -> AskedCall:
    digest = arguments_digest(call.arguments)
    return AskedCall(call_id(turn, index, digest), call.provider_id, call.name, call.arguments, digest, is_declared)
