"""Model calls on their way out and back: the request, and the calls of a reply with ids of the engine's own."""

from collections.abc import Container, Sequence

from pilothouse_engine.actions import CallModel
from pilothouse_engine.executions import arguments_digest, call_id
from pilothouse_engine.facts import AskedCall
from pilothouse_engine.ports import Message, ModelRequest, RequestedCall
from pilothouse_engine.prompts.levels import Sent, sent_at
from pilothouse_engine.state import RunState, Visit


def build_request(state: RunState, action: CallModel) -> ModelRequest:
    """Return the request of one attempt; the pinned note joins the system text of this request alone."""
    visit = state.visit
    assert visit is not None
    started = action.started
    messages = _own_forms(visit, started.endpoint)
    left_out: tuple[str, ...] = ()
    if started.level != "full":
        sent = sent_at(visit, messages, started.level)
        left_out = _left_out(messages, sent)
        messages = tuple(item.message for item in sent)
    return ModelRequest(
        endpoint=action.endpoint,
        messages=_with_pinned(messages, action.pinned),
        tools=action.tools,
        step=visit.step,
        turn=started.turn,
        script=action.script,
        marks=tuple(state.marks.get(started.script, ())) if started.script is not None else (),
        left_out=left_out,
    )


def _left_out(messages: Sequence[Message], sent: Sequence[Sent]) -> tuple[str, ...]:
    kept = {item.index for item in sent}
    return tuple(c.provider_id for index, message in enumerate(messages) if index not in kept for c in message.calls)


def _with_pinned(messages: tuple[Message, ...], pinned: str | None) -> tuple[Message, ...]:
    if pinned is None:
        return messages
    head = messages[0] if messages and messages[0].role == "system" else None
    if head is None:
        return (Message("system", pinned), *messages)
    return (Message("system", f"{head.text}\n\n{pinned}"), *messages[1:])


def _own_forms(visit: Visit, endpoint: int) -> tuple[Message, ...]:
    """Return the messages without what another provider keeps with them: only that one understands it."""
    if all(source == endpoint for source in visit.raw_from.values()):
        return tuple(visit.messages)
    return tuple(
        Message(m.role, m.text, m.calls, m.provider_id, m.name) if visit.raw_from.get(i, endpoint) != endpoint else m
        for i, m in enumerate(visit.messages)
    )


def asked_calls(turn: int, calls: tuple[RequestedCall, ...], declared: Container[str]) -> tuple[AskedCall, ...]:
    """Return the calls of a reply as they are journaled."""
    return tuple(_asked(turn, index, call, call.name in declared) for index, call in enumerate(calls))


def _asked(turn: int, index: int, call: RequestedCall, is_declared: bool) -> AskedCall:
    digest = arguments_digest(call.arguments)
    return AskedCall(call_id(turn, index, digest), call.provider_id, call.name, call.arguments, digest, is_declared)
