import pytest

from pilothouse_api.structs import Router
from pilothouse_engine.steps.contract import StepDone
from pilothouse_engine.steps.router import execute_router


@pytest.mark.anyio
@pytest.mark.parametrize("value", ["refund", "Needs Review", "default", "größe"])
async def test_match_gives_the_value_at_the_path_as_the_signal(stage, make_call, value: str) -> None:
    params = Router.read({"match": "ticket.kind"})

    end = await execute_router(make_call(params, {"ticket": {"kind": value}}), stage.ports)

    assert end == StepDone(signal=value, writes={}, output={"signal": value})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("value", "want_type", "want_message"),
    [
        (True, "InvalidSignal", "a boolean"),
        (3, "InvalidSignal", "a number"),
        (None, "InvalidSignal", "null"),
        ({}, "InvalidSignal", "an object"),
        ([], "InvalidSignal", "an array"),
        ("", "InvalidSignal", "but this has 0"),
        ("x" * 64, "InvalidSignal", "but this has 64"),
        ("two\nlines", "InvalidSignal", "printable"),
        ("\ud800", "InvalidSignal", "printable"),
        ("_hidden", "InvalidSignal", "reserved"),
        ("aborted", "InvalidSignal", "reserved"),
        ("budget_exceeded", "InvalidSignal", "reserved"),
        ("end", "InvalidSignal", "reserved"),
        ("error", "RoutedToError", "kind is error"),
    ],
)
async def test_match_refuses_what_data_must_not_signal(
    stage, make_call, value: object, want_type: str, want_message: str
) -> None:
    end = await execute_router(make_call(Router(match="kind"), {"kind": value}), stage.ports)

    assert isinstance(end, StepDone)
    assert (end.signal, end.error_type) == ("error", want_type)
    assert want_message in (end.error_message or "")


@pytest.mark.anyio
async def test_match_on_a_missing_path_is_an_error(stage, make_call) -> None:
    end = await execute_router(make_call(Router(match="ticket.kind"), {"ticket": {}}), stage.ports)

    assert isinstance(end, StepDone)
    assert (end.signal, end.error_type) == ("error", "MissingContext")


CONDITIONS = Router.read(
    {
        "conditions": [
            {"cel": "context._api_status_code == 404", "signal": "gone"},
            {"cel": "amount > 50.0", "signal": "big"},
            {"cel": "context.amount > 10.0", "signal": "middling"},
        ]
    }
)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("context", "want"),
    [
        ({"amount": 60.0, "_api_status_code": 200}, "big"),
        ({"amount": 60.0, "_api_status_code": 404}, "gone"),
        ({"amount": 20.0, "_api_status_code": 200}, "middling"),
        ({"amount": 1.0, "_api_status_code": 200}, "default"),
    ],
)
async def test_the_first_true_condition_gives_the_signal(stage, make_call, context: dict, want: str) -> None:
    end = await execute_router(make_call(CONDITIONS, context), stage.ports)

    assert isinstance(end, StepDone)
    assert end.signal == want


@pytest.mark.anyio
@pytest.mark.parametrize("cel", ["nothing.here", "1 +", "'text'", "_secret == 1"])
async def test_a_condition_that_fails_or_is_no_boolean_is_an_error(stage, make_call, cel: str) -> None:
    params = Router.read({"conditions": [{"cel": cel, "signal": "x"}]})

    end = await execute_router(make_call(params, {"_secret": 1}), stage.ports)

    assert isinstance(end, StepDone)
    assert (end.signal, end.error_type) == ("error", "ExpressionFailed")
    assert "router.conditions[0].cel" in (end.error_message or "")
