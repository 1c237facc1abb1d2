import pytest

from pilothouse_api.structs import Response
from pilothouse_engine.steps.contract import StepDone
from pilothouse_engine.steps.response import execute_response


@pytest.mark.anyio
async def test_the_mapping_becomes_the_result_of_the_run(stage, make_call) -> None:
    params = Response.read({"mapping": {"answer": "found.items.1", "cause": "_last_error"}})
    context = {"found": {"items": ["a", {"b": 1}]}, "_last_error": "ToolTimeout"}

    end = await execute_response(make_call(params, context), stage.ports)

    want = {"answer": {"b": 1}, "cause": "ToolTimeout"}
    assert end == StepDone(signal="default", writes={}, output=want, result=want)


@pytest.mark.anyio
async def test_a_missing_path_is_an_error_and_sets_no_result(stage, make_call) -> None:
    params = Response.read({"mapping": {"answer": "found", "more": "nothing.here"}})

    end = await execute_response(make_call(params, {"found": 1}), stage.ports)

    assert isinstance(end, StepDone)
    assert (end.signal, end.error_type, end.result) == ("error", "MissingContext", None)
    assert end.error_message == "response.mapping: nothing.here is not in the context"
