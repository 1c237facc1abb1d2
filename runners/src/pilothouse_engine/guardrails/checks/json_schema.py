"""JsonSchema: refuses text that is not JSON of a shape."""

from pilothouse_api.schemas import SchemaError, compile_schema
from pilothouse_api.structs import JsonSchemaCheck
from pilothouse_engine.guardrails.verdicts import Allow, CheckVerdict, Refuse
from pilothouse_engine.outcome import strip_fence
from pilothouse_engine.strict_json import JsonError, parse_json


def evaluate(subject: str, params: JsonSchemaCheck) -> CheckVerdict:
    """Refuse a text that is no JSON (a code fence around it is taken off) or does not fit the schema."""
    try:
        value = parse_json(strip_fence(subject))
    except JsonError:  # what is wrong with it would quote it
        return Refuse("the text is not valid JSON")
    try:
        rules = compile_schema(params.schema_).broken_rules(value)
    except SchemaError as error:
        return Refuse(f"jsonSchema.schema is no JSON Schema ({error})")
    return Refuse("the text does not fit jsonSchema.schema: " + ", ".join(rules)) if rules else Allow()
