"""Calls on their way out and back: what an executor is handed, and the fact that its end becomes. Pure."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pilothouse_api.digests import canonical_json, digest, text_digest
from pilothouse_api.signals import ERROR
from pilothouse_engine.actions import Execution, Inputs, ReadSlice
from pilothouse_engine.catalog import Catalog, PlannedTool, Work
from pilothouse_engine.context import delta_for_model, fit_writes
from pilothouse_engine.facts import CallFinished, CallStarted
from pilothouse_engine.limits import Limits
from pilothouse_engine.results import Part, compact, error_content, part_of, slice_of
from pilothouse_engine.state import Call, RunState, Visit
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.strict_json import printable

MAX_ERROR_CHARS = 500
MAX_ID_CHARS = 40
MAX_IDS_SHOWN = 8
EDITED_NOTE = "a person approved this call with these arguments in place of yours; null: left out"


class TimedOut:
    """A call did not end in its time."""


def arguments_digest(arguments_text: str) -> str:
    """Return the digest of the arguments as the model wrote them: of their canonical JSON, else of their text.

    It only tells calls apart; whether the arguments are fit to be used is judged later and more strictly.
    """
    try:
        return digest(msgspec.json.decode(arguments_text) if arguments_text.strip() else {})
    except (ValueError, TypeError, RecursionError):
        return text_digest(arguments_text)


def call_id(turn: int, index: int, arguments: str) -> str:
    """Return the engine's id of a call, from the digest of its arguments."""
    return f"t{turn}-{index}-{arguments[:8]}"


def idempotency_key(catalog: Catalog, visit: Visit, turn: int, index: int, tool: str, arguments: str) -> str:
    """Return the key of a call, the same in every attempt."""
    run = catalog.plan.run
    return text_digest(canonical_json([run.uid, visit.step, visit.number, turn, index, tool, arguments]))


def build_tool_execution(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    limits: Limits,
    call: Call,
    planned: PlannedTool,
    arguments: dict[str, Any],
) -> Execution:
    """Return a tool call that has passed its gates; raises IntegrityError."""
    visit, tool = state.visit, planned.tool
    assert visit is not None
    started = build_tool_start(catalog, state, inputs, call, planned, arguments)
    key = started.key
    if planned.work is None:
        gate = catalog.gates(visit.step).tools
        part = part_of if gate is None else gate.part
        work = _read_slice(visit, arguments, limits.max_tool_result_chars, part)
        return Execution(started, work, 1.0, "ToolTimeout")
    timeout = min(limits.tool_timeout, float(tool.timeout_seconds or limits.tool_timeout))
    context = {**state.seen_context(), **arguments}
    return Execution(
        started,
        build_step_call(catalog, inputs, planned.work, planned.effect, key, context, arguments),
        timeout,
        "ToolTimeout",
        cut_at=limits.max_tool_result_chars,
        writes_context=tool.writes_context,
        arguments=arguments,
    )


def build_tool_start(
    catalog: Catalog, state: RunState, inputs: Inputs, call: Call, planned: PlannedTool, arguments: dict[str, Any]
) -> CallStarted:
    """Return the start of a tool call with its key."""
    tool, asked = planned.tool, call.asked
    key, executed = "", asked.digest
    if call.edited is not None:
        executed = digest(arguments)
    if planned.effect != "ReadOnly":  # a call that changes nothing needs no key, and none is sent
        assert state.visit is not None
        executed = digest(arguments)
        index = int(asked.id.split("-")[1])
        key = idempotency_key(catalog, state.visit, state.turn, index, tool.name, executed)
    return CallStarted(inputs.now, asked.id, tool.name, planned.effect, key, executed, inputs.attempt, call.is_approved)


def build_step_call(
    catalog: Catalog,
    inputs: Inputs,
    work: Work,
    effect: str,
    key: str,
    context: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
) -> StepCall:
    """Return what an executor is handed; raises IntegrityError for a text that is not what was planned."""
    run = catalog.plan.run
    return StepCall(
        step_id=work.step_id,
        kind=work.kind,
        params=work.params,
        context=context,
        namespace=run.namespace,
        run=run.name,
        idempotency_key=None if effect == "ReadOnly" else key,
        may_repeat=effect != "Once",
        settings=inputs.settings,
        arguments=arguments,
        texts=catalog.texts_of(work),
    )


def _read_slice(visit: Visit, arguments: Mapping[str, Any], longest: int, part: Part) -> ReadSlice:
    wanted = str(arguments["call_id"])
    content = visit.results.get(wanted)
    if content is None:
        known = ", ".join(list(visit.results)[-MAX_IDS_SHOWN:])
        message = f"this step has no result {printable(wanted, MAX_ID_CHARS)}; the newest are {known or 'none'}"
        return ReadSlice(message, is_error=True)
    offset = int(arguments.get("offset", 0))
    if offset >= len(content):
        return ReadSlice(f"offset {offset} is past the end: {wanted} has {len(content)} characters", is_error=True)
    return ReadSlice(slice_of(wanted, content, offset, int(arguments.get("limit", longest)), longest, part))


# ---------------------------------------------------------------- the way back


def finish_slice(execution: Execution, work: ReadSlice, now: float) -> CallFinished:
    """Return the result of read_tool_result; a slice is never cut again."""
    call = execution.started.id
    if work.is_error:
        return CallFinished(
            now, call, error_content("tool_error", work.content), "tool_error", ERROR, message=work.content
        )
    return CallFinished(now, call, work.content, signal="default")


def finish_tool(
    state: RunState, inputs: Inputs, execution: Execution, end: StepEnd | TimedOut, now: float, seconds: float
) -> CallFinished:
    """Return the result of a tool call."""
    finished = _finish_tool(state, inputs, execution, end, now, seconds)
    assert state.visit is not None
    return tell_edit(state.visit.call_ids[execution.started.id], finished)


def tell_edit(call: Call, finished: CallFinished) -> CallFinished:
    """Return a result that says so where a person changed the arguments: the model reads its own above it."""
    if call.edited is None:
        return finished
    asked: dict[str, Any] = json.loads(call.asked.arguments) if call.asked.arguments.strip() else {}
    gone = {name: None for name in asked if name not in call.edited and not name.startswith("_")}
    changed = {
        name: to
        for name, to in call.edited.items()
        if name not in asked or canonical_json(asked[name]) != canonical_json(to)
    }
    said = compact({"note": EDITED_NOTE, "arguments": changed | gone})
    return replace(finished, content=f'{{"approval":{said},{finished.content[1:]}')


def _finish_tool(
    state: RunState, inputs: Inputs, execution: Execution, end: StepEnd | TimedOut, now: float, seconds: float
) -> CallFinished:
    started = execution.started
    if isinstance(end, TimedOut):
        return _timed_out(execution, now, seconds)
    if isinstance(end, StepUnknown):
        return _unknown(execution, end, now, seconds)
    if end.signal == ERROR or end.error_type is not None:
        message = (end.error_message or "the tool failed")[:MAX_ERROR_CHARS]
        error = {"code": "tool_error", "type": end.error_type, "message": message}
        content = compact({"signal": end.signal, "output": end.output, "error": error})
        return CallFinished(
            now,
            started.id,
            content,
            "tool_error",
            end.signal,
            message=message,
            cut_at=execution.cut_at,
            error_type=end.error_type,
            seconds=seconds,
        )
    delta = delta_for_model(end.writes, execution.arguments)
    content = compact({"signal": end.signal, "output": delta or end.output})
    return CallFinished(
        now,
        started.id,
        content,
        signal=end.signal,
        cut_at=execution.cut_at,
        writes=_fit(state, inputs, delta, started.id) if execution.writes_context and delta else None,
        seconds=seconds,
    )


def _timed_out(execution: Execution, now: float, seconds: float) -> CallFinished:
    started = execution.started
    message = f"{started.tool} did not return within {min(execution.timeout, seconds):g} s"
    return CallFinished(
        now,
        started.id,
        error_content("tool_error", message),
        "tool_error",
        ERROR,
        message=message,
        is_unknown=started.effect != "ReadOnly",
        fatal=execution.timeout_type,
        error_type=execution.timeout_type,
        seconds=seconds,
    )


def _unknown(execution: Execution, end: StepUnknown, now: float, seconds: float) -> CallFinished:
    message = (
        f"nobody knows whether this call was carried out ({end.message[:MAX_ERROR_CHARS]});"
        " it is not repeated: find out before you go on"
    )
    return CallFinished(
        now,
        execution.started.id,
        error_content("tool_effect_unknown", message),
        "tool_effect_unknown",
        ERROR,
        message=message,
        is_unknown=True,
        error_type="EffectUnknown",
        seconds=seconds,
    )


def finish_step(
    state: RunState, inputs: Inputs, execution: Execution, end: StepEnd | TimedOut, now: float, seconds: float
) -> CallFinished:
    """Return the end of a step of the graph."""
    started = execution.started
    if isinstance(end, TimedOut):
        return _timed_out(execution, now, seconds)
    if isinstance(end, StepUnknown):
        return _unknown(execution, end, now, seconds)
    return CallFinished(
        now,
        started.id,
        "",
        "tool_error" if end.signal == ERROR else None,
        end.signal,
        message=(end.error_message or "")[:MAX_ERROR_CHARS],
        writes=_fit(state, inputs, end.writes, started.id) if end.writes else None,
        engine_writes=_engine_keys(end),
        error_type=end.error_type,
        result=end.result,
        seconds=seconds,
    )


def _engine_keys(end: StepDone) -> Mapping[str, Any] | None:
    return {key: value for key, value in end.engine_writes.items() if key.startswith("_")} or None


def _fit(state: RunState, inputs: Inputs, writes: Mapping[str, Any], where: str) -> dict[str, Any]:
    used = len(state.context_json().encode("utf-8", "surrogatepass"))
    return fit_writes(state.context, used, writes, inputs.settings.max_context_bytes, f"journal/{where}")
