"""What a policy sees of a step of the graph: what the step would send, and nothing that its headers hold."""

from typing import Any

import pytest

from pilothouse_api import structs as steps
from pilothouse_engine.policies.step_inputs import InputsUnknown, render_inputs

CONTEXT = {
    "id": "../admin",
    "amount": 80,
    "note": 'say "hi"',
    "who": {"name": "Jo"},
    "_last_error": "it failed",
}
URL = "https://crm.test/accounts/{{ id }}"
SECRET = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "crm", "key": "token"}}}
JSON_TYPE = {"name": "content-type", "value": "application/json"}
SERVER = {"name": "gh", "transport": "StreamableHTTP", "url": "https://gh.test/mcp"}


@pytest.mark.parametrize(
    ("model", "fields", "want"),
    [
        (
            steps.APICall,
            {
                "method": "POST",
                "url": URL,
                "query": {"q": "{{ note }}"},
                "headers": [SECRET],
                "body": {"n": "{{ amount }}"},
            },
            {
                "method": "POST",
                "url": "https://crm.test/accounts/..%2Fadmin?q=say%20%22hi%22",
                "body": {"n": 80},
            },
        ),
        (
            steps.APICall,
            {"method": "DELETE", "url": URL},
            {"method": "DELETE", "url": "https://crm.test/accounts/..%2Fadmin"},
        ),
        (
            steps.APICall,
            {"method": "POST", "url": "https://a.test/", "headers": [JSON_TYPE], "body": '{"n": "{{ note }}"}'},
            {"method": "POST", "url": "https://a.test/", "body": {"n": 'say "hi"'}},
        ),
        (
            steps.APICall,
            {"method": "POST", "url": "https://a.test/", "body": "n={{ note }}"},
            {"method": "POST", "url": "https://a.test/", "body": 'n=say "hi"'},
        ),
        (steps.FunctionCall, {"callable": "m:f", "arguments": {"n": "{{ amount }}"}}, {"n": 80}),
        (steps.FunctionCall, {"callable": "m:f"}, {k: v for k, v in CONTEXT.items() if k != "_last_error"}),
        (steps.FunctionCall, {"callable": "m:f", "arguments": {"why": "{{ _last_error }}"}}, {"why": "it failed"}),
        (steps.McpCall, {"server": SERVER, "tool": "t", "arguments": {"who": "{{ who.name }}"}}, {"who": "Jo"}),
        (steps.Delegate, {"workflowRef": {"name": "w"}, "input": {"who": "{{ who }}"}}, {"who": {"name": "Jo"}}),
        (
            steps.ResourceCall,
            {"operation": "Delete", "apiVersion": "v1", "kind": "Pod", "name": "{{ who.name }}"},
            {"operation": "Delete", "apiVersion": "v1", "kind": "Pod", "name": "Jo"},
        ),
    ],
)
def test_the_inputs_are_what_the_step_would_send(model: Any, fields: dict[str, Any], want: dict[str, Any]) -> None:
    assert render_inputs(model.read(fields), CONTEXT) == want


@pytest.mark.parametrize(
    ("model", "fields", "want"),
    [
        (steps.FunctionCall, {"callable": "m:f", "arguments": {"n": "{{ none }}"}}, "none is not in the context"),
        (steps.APICall, {"method": "GET", "url": "https://a.test/{{ none }}"}, "none is not in the context"),
        (
            steps.APICall,
            {"method": "POST", "url": "https://a.test/", "headers": [JSON_TYPE], "body": "{"},
            "apiCall.body is a string that is no JSON",
        ),
    ],
)
def test_inputs_that_cannot_be_filled_in_say_why(model: Any, fields: dict[str, Any], want: str) -> None:
    with pytest.raises(InputsUnknown) as caught:
        render_inputs(model.read(fields), CONTEXT)
    assert want in str(caught.value)
