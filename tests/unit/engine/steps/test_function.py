import pytest

from pilothouse_api.structs import FunctionCall
from pilothouse_engine.ports import FunctionFailure, FunctionReply
from pilothouse_engine.steps.contract import StepDone, StepUnknown
from pilothouse_engine.steps.function import execute_function


def function(**fields: object) -> FunctionCall:
    return FunctionCall.read({"callable": "report:build", **fields})


@pytest.mark.anyio
async def test_it_is_called_with_the_public_context_unless_arguments_are_declared(stage, make_call) -> None:
    context = {"a": 1, "_last_error": "x"}

    await execute_function(make_call(function(), context), stage.ports)
    await execute_function(make_call(function(arguments={"n": "{{ a }}", "t": "is {{ a }}"}), context), stage.ports)

    assert [request.arguments for request in stage.function_requests] == [{"a": 1}, {"n": 1, "t": "is 1"}]


@pytest.mark.anyio
async def test_source_comes_inline_or_from_the_texts_of_the_plan(stage, make_call) -> None:
    inline = function(source={"inline": "def build(a): ..."})
    planned = function(source={"configMapKeyRef": {"name": "code", "key": "report.py"}})

    await execute_function(make_call(inline), stage.ports)
    await execute_function(make_call(planned, texts={"configmap:code/report.py": "def build(b): ..."}), stage.ports)

    assert [request.source for request in stage.function_requests] == ["def build(a): ...", "def build(b): ..."]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "output", "want"),
    [
        (FunctionReply({"n": 1}), None, StepDone("default", {"n": 1}, {"n": 1})),
        (FunctionReply({"n": 1}), "report", StepDone("default", {"report": {"n": 1}}, {"n": 1})),
        (FunctionReply(None, "late"), "report", StepDone("late", {}, None)),
        (FunctionReply({"n": 1}, "late"), None, StepDone("late", {"n": 1}, {"n": 1})),
        (FunctionReply({"_x": 1}), "report", StepDone("default", {"report": {"_x": 1}}, {"_x": 1})),
    ],
)
async def test_what_it_returns_becomes_context_and_signal(stage, make_call, reply, output, want) -> None:
    stage.function_answer = reply

    assert await execute_function(make_call(function(output=output)), stage.ports) == want


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (FunctionReply({"n": 1}, "error"), "FunctionError"),
        (FunctionReply({"n": 1}, "aborted"), "InvalidSignal"),
        (FunctionReply({"_last_error": 1}), "InvalidOutput"),
        (FunctionFailure("Timeout", "took longer than 30 s"), "FunctionTimeout"),
        (FunctionFailure("Raised", "ValueError: no"), "FunctionRaised"),
        (FunctionFailure("Invalid", "returned a list"), "InvalidOutput"),
        (FunctionFailure("TooLarge", "more than 1000 bytes"), "OutputTooLarge"),
        (FunctionFailure("Died", "killed by signal 9"), "FunctionDied"),
        (FunctionFailure("NotStarted", "no memory"), "FunctionNotStarted"),
    ],
)
async def test_what_goes_wrong_is_an_error_that_writes_nothing(stage, make_call, answer, want: str) -> None:
    stage.function_answer = answer

    end = await execute_function(make_call(function(), may_repeat=True), stage.ports)

    assert isinstance(end, StepDone)
    assert (end.signal, end.writes, end.error_type) == ("error", {}, want)
    assert "report:build" in (end.error_message or "")


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["Timeout", "Raised", "Invalid", "TooLarge", "Died", "NotStarted"])
async def test_one_that_was_cut_short_and_may_not_be_repeated_has_an_unknown_effect(stage, make_call, kind) -> None:
    """Told that it failed, a model would call it again, and what it did would be done twice."""
    stage.function_answer = FunctionFailure(kind, "why")

    end = await execute_function(make_call(function(), may_repeat=False), stage.ports)

    if kind in ("Timeout", "Died"):
        assert end == StepUnknown("report:build: why")
    else:
        assert isinstance(end, StepDone) and end.signal == "error"


@pytest.mark.anyio
async def test_a_missing_argument_is_an_error_and_nothing_runs(stage, make_call) -> None:
    end = await execute_function(make_call(function(arguments={"n": "{{ nothing }}"})), stage.ports)

    assert isinstance(end, StepDone)
    assert end.error_type == "MissingContext"
    assert stage.function_requests == []
