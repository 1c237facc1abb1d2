"""Response: sets the run's result from paths in the context."""

from pilothouse_api.signals import DEFAULT
from pilothouse_api.structs import Response
from pilothouse_api.templates import MissingPath, lookup
from pilothouse_engine.ports import Ports
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd
from pilothouse_engine.steps.outcomes import failed


async def execute_response(call: StepCall, ports: Ports) -> StepEnd:
    """Return the result that the mapping gives; a missing path is an error."""
    assert isinstance(call.params, Response)
    try:
        result = {key: lookup(call.context, path) for key, path in call.params.mapping.items()}
    except MissingPath as missing:
        return failed("MissingContext", f"response.mapping: {missing}")
    return StepDone(signal=DEFAULT, writes={}, output=result, result=result)
