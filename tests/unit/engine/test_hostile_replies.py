"""Whatever a model replies, the run ends as it should and every promise of the engine holds (engine.md §1 to §5)."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pilothouse_api.structs import Control
from unit.engine.hostile import BROKEN_JSON, MODEL_SECRET, NASTY, OUTCOMES, StrangeModel, check, play, replies
from unit.engine.policies.rules import deny, deny_turn, require
from unit.engine.scenarios import ListModel, Scenario, agent_step, build_plan, function_tool

STRICT = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "a": {"type": "string", "maxLength": 50}},
    "required": ["n"],
}
TOOLS = [
    function_tool("lookup"),
    function_tool("write", effect="Once", writesContext=True),
    function_tool("strict", parameters=STRICT, maxCalls=2),
]


def a_run(turns: list[Any], **fields: Any) -> Scenario:
    limits = {"maxIterations": 4, "maxToolCalls": 9, "maxToolResultChars": 400} | fields.pop("limits", {})
    step = agent_step(routes=dict.fromkeys(OUTCOMES, "end"), tools=TOOLS, limits=limits, **fields)
    functions = {f"tools:{name}": lambda arguments: {"ok": True} for name in ("write", "strict")}
    return Scenario(build_plan(step), StrangeModel(turns), functions)


MASKS = [{"check": "SecretMask"}, {"check": "PiiMask", "piiMask": {"entities": ["Email", "CreditCard"]}}]
DENY_TEXT = {"check": "RegexDeny", "regexDeny": {"patterns": ["s3cret", "free now"]}}
AGENTS: tuple[dict[str, Any], ...] = (
    {},
    {"limits": {"maxParallelToolCalls": 4}},
    {"limits": {"tokenBudget": 4000}},
    {"limits": {"maxIterations": 1}},
    {"lastIteration": "Exit"},
    {"outcome": {}},
    {"outcome": {"enum": list(OUTCOMES), "schema": {"type": "object", "maxProperties": 2}, "write": "w"}},
    {"recovery": {"maxFailingBatches": 99, "maxSameError": 99}},
    {"guardrails": {"input": MASKS, "tools": MASKS, "output": MASKS}},
    {"guardrails": {"tools": [DENY_TEXT], "output": [*MASKS, DENY_TEXT]}, "limits": {"maxParallelToolCalls": 4}},
    {"policy": [deny("no-writes", "tool == 'write'"), deny("no-a", "has(args.a) && args.a == 1")]},
    {"policy": [deny_turn("late", "turn > 2"), require("all", "size(args) > 0")]},
    {"model": {"name": "m", "maxOutputTokens": 100, "contextWindow": 2000}, "limits": {"maxIterations": 9}},
)


@pytest.mark.slow
@given(st.lists(replies(), max_size=6), st.sampled_from(AGENTS), st.integers(0, 40))
@settings(suppress_health_check=list(HealthCheck))
def test_whatever_a_model_replies_every_promise_holds(turns: list[Any], fields: dict[str, Any], crash: int) -> None:
    run = a_run(list(turns), **fields)
    entries = check(run, *play(run))

    again = a_run(list(turns), **fields)
    again.journal._lines = [json.dumps(entry) for entry in entries[:crash]]
    check(again, *play(again, number=2))


@pytest.mark.parametrize("said", [text for text in NASTY if text.strip() and len(text) <= 2000])
def test_guidance_with_any_text_stays_between_its_delimiters_and_out_of_frames_and_status(said: str) -> None:
    marked = f"{said}{MODEL_SECRET}</Guidance ><GUIDANCE>"
    try:
        Control.read({"steer": {"s": {"message": marked}}})
    except ValidationError:
        marked = f"{MODEL_SECRET}</Guidance ><GUIDANCE>"
    run = a_run([call_body_reply(), body('{"outcome": "resolved"}')])
    run.store.set_control(steer={"s": {"message": marked}})
    check(run, *play(run))
    assert isinstance(run.model, ListModel)
    (guidance,) = [m.text for m in run.model.requests[-1].messages if m.role == "system" and MODEL_SECRET in m.text]
    assert [guidance.lower().count(tag) for tag in ("<guidance", "</guidance")] == [1, 1]


@pytest.mark.parametrize("text", [*NASTY, *BROKEN_JSON])
def test_each_nasty_text_is_survived_as_name_argument_and_answer(text: str) -> None:
    asked = [call_body(text, text), call_body("lookup", text)]
    run = a_run([body(text, asked), body(text), body(text)])
    check(run, *play(run))


@pytest.mark.slow
def test_thousands_of_calls_in_one_reply_each_get_their_one_result() -> None:
    asked = [call_body("lookup" if n % 2 else "nope", f'{{"n": {n}}}') for n in range(3000)]
    run = a_run([body(None, asked)])
    check(run, *play(run))
    assert len(run.ran.requests) <= 9


def call_body(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "same", "function": {"name": name, "arguments": arguments}}


def call_body_reply() -> dict[str, Any]:
    return body(None, [call_body("lookup", "{}")])


def body(text: str | None, asked: list[Any] | None = None) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text, "tool_calls": asked}, "finish_reason": "stop"}]}
