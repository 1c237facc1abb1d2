import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_api.structs import APICall, Retry
from pilothouse_engine.ports import HttpFailure, HttpResponse
from pilothouse_engine.steps.api_call import decode_body, execute_api_call, plan_retry
from pilothouse_engine.steps.contract import StepDone, StepUnknown

OK = HttpResponse(200, (("Content-Type", "application/json"),), b'{"data": {"balance": 12.5}}')
URL = "https://crm.example/api/accounts/{{ customer }}"


def api_call(**fields: object) -> APICall:
    return APICall.read({"url": "https://crm.example/x", **fields})


async def send(stage, make_call, params: APICall, context: dict[str, Any] | None = None, **more: Any):
    if not stage.http_answers:
        stage.http_answers = [OK]
    return await execute_api_call(make_call(params, context, **more), stage.ports)


# ---------------------------------------------------------------- the request


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("c-17", "c-17"),
        (17, "17"),
        ("a/../../admin?x=1#y", "a%2F..%2F..%2Fadmin%3Fx%3D1%23y"),
        ("ü \r\nHost: evil", "%C3%BC%20%0D%0AHost%3A%20evil"),
        ("%2e%2e", "%252e%252e"),
        ("\ud800", "%3F"),
    ],
)
async def test_values_in_an_address_are_percent_encoded(stage, make_call, value: object, want: str) -> None:
    await send(stage, make_call, api_call(url=URL), {"customer": value})

    assert stage.requests[0].url == f"https://crm.example/api/accounts/{want}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("url", "customer"),
    [
        *((url, value) for url in (URL, f"{URL}/orders", f"{URL}?page=1") for value in ("..", ".", "")),
        ("https://crm.example/api/.{{ customer }}", "."),
    ],
)
async def test_a_value_cannot_make_the_address_mean_another_place(stage, make_call, url: str, customer: str) -> None:
    end = await send(stage, make_call, api_call(url=url, method="DELETE"), {"customer": customer})

    assert isinstance(end, StepDone)
    assert end.error_type == "InvalidUrl"
    assert stage.requests == []


@pytest.mark.anyio
async def test_query_parameters_are_added_to_those_of_the_address(stage, make_call) -> None:
    params = api_call(url="https://crm.example/x?a={{ a }}#part", query={"b c": "{{ b }}", "empty": ""})

    await send(stage, make_call, params, {"a": "1&admin=1", "b": ["x", 2]})

    assert stage.requests[0].url == "https://crm.example/x?a=1%26admin%3D1&b%20c=%5B%22x%22%2C2%5D&empty="


@pytest.mark.anyio
async def test_a_json_body_is_filled_with_values(stage, make_call) -> None:
    params = api_call(method="POST", body={"who": "{{ who }}", "all": "{{ all }}", "note": "for {{ who }}", "n": 1})

    await send(stage, make_call, params, {"who": 'x", "admin": true, "y": "', "all": {"k": [1.5, None, True]}})

    request = stage.requests[0]
    assert json.loads(request.body or b"") == {
        "who": 'x", "admin": true, "y": "',
        "all": {"k": [1.5, None, True]},
        "note": 'for x", "admin": true, "y": "',
        "n": 1,
    }
    assert ("Content-Type", "application/json") in request.headers


JSON_HEADER = [{"name": "content-type", "value": "application/json; charset=utf-8"}]
FORM_HEADER = [{"name": "Content-Type", "value": "application/x-www-form-urlencoded"}]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "body", "want"),
    [
        ([], "hello {{ v }}", b'hello 1", "admin": "1'),
        (JSON_HEADER, '{"a": "{{ v }}"}', b'{"a":"1\\", \\"admin\\": \\"1"}'),
        (FORM_HEADER, "a={{ v }}&b=2", b"a=1%22%2C+%22admin%22%3A+%221&b=2"),
    ],
)
async def test_a_text_body_is_escaped_as_its_content_type_asks(stage, make_call, headers, body, want: bytes) -> None:
    await send(stage, make_call, api_call(method="POST", headers=headers, body=body), {"v": '1", "admin": "1'})

    assert stage.requests[0].body == want


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "context", "want"),
    [
        ({"headers": [{"name": "X-A", "value": "{{ v }}"}]}, {"v": "a\r\nX-B: 1"}, "InvalidHeader"),
        ({"headers": [{"name": "X-A", "value": "{{ v }}"}]}, {"v": "a\0"}, "InvalidHeader"),
        ({"headers": [{"name": "Content-Length", "value": "3"}]}, {}, "InvalidHeader"),
        ({"headers": JSON_HEADER, "method": "POST", "body": '{"n": {{ v }}}'}, {"v": '1, "a": 2'}, "InvalidBody"),
        ({"method": "POST", "body": {"n": "{{ v }}"}}, {"v": float("nan")}, "InvalidBody"),
        ({"url": URL}, {}, "MissingContext"),
        ({"headers": [{"name": "X-A", "value": "{{ v.a }}"}]}, {"v": 1}, "MissingContext"),
        ({"query": {"a": "{{ v }}"}}, {}, "MissingContext"),
        ({"method": "POST", "body": ["{{ v }}"]}, {}, "MissingContext"),
    ],
)
async def test_a_request_that_cannot_be_built_is_an_error_and_is_not_sent(
    stage, make_call, fields, context, want: str
) -> None:
    end = await send(stage, make_call, api_call(**fields), context)

    assert isinstance(end, StepDone)
    assert (end.signal, end.error_type) == ("error", want)
    assert "apiCall" in (end.error_message or "")
    assert stage.requests == []


@pytest.mark.anyio
async def test_the_idempotency_key_is_sent_where_there_is_one_and_the_authors_own_wins(stage, make_call) -> None:
    own = [{"name": "idempotency-key", "value": "order-{{ id }}"}]
    stage.http_answers = [OK, OK, OK]

    await send(stage, make_call, api_call(), idempotency_key="k1")
    await send(stage, make_call, api_call(headers=own), {"id": 7}, idempotency_key="k1")
    await send(stage, make_call, api_call(), idempotency_key=None)

    want = [(("Idempotency-Key", "k1"),), (("idempotency-key", "order-7"),), ()]
    assert [request.headers for request in stage.requests] == want


SECRET_HEADER = [{"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "crm", "key": "token"}}}]


@pytest.mark.anyio
async def test_a_secret_is_read_anew_for_each_attempt(stage, make_call) -> None:
    stage.secret_values = {("crm", "token"): ["Bearer one", "Bearer two"]}
    stage.http_answers = [HttpResponse(503), OK]

    await send(stage, make_call, api_call(headers=SECRET_HEADER, retry={}), may_repeat=True)

    assert [request.headers[0][1] for request in stage.requests] == ["Bearer one", "Bearer two"]


@pytest.mark.anyio
async def test_a_call_is_never_sent_without_its_secret(stage, make_call) -> None:
    end = await send(stage, make_call, api_call(headers=SECRET_HEADER))

    assert isinstance(end, StepDone)
    assert (end.error_type, stage.requests) == ("SecretUnavailable", [])
    assert "crm" in (end.error_message or "") and "token" in (end.error_message or "")


@pytest.mark.anyio
async def test_a_bad_secret_is_not_quoted_in_the_error(stage, make_call) -> None:
    stage.secret_values = {("crm", "token"): ["hunter2\nX: 1"]}

    end = await send(stage, make_call, api_call(headers=SECRET_HEADER))

    assert isinstance(end, StepDone)
    assert end.error_type == "InvalidHeader"
    assert "hunter2" not in repr(end)


# ---------------------------------------------------------------- the answer


@pytest.mark.anyio
async def test_the_body_and_its_extracted_parts_become_context(stage, make_call) -> None:
    params = api_call(output="account", extract=[{"path": "data.balance", "as": "balance"}])

    end = await send(stage, make_call, params)

    body = {"data": {"balance": 12.5}}
    assert end == StepDone("default", {"account": body, "balance": 12.5}, body, engine_writes={"_api_status_code": 200})


@pytest.mark.anyio
async def test_without_output_the_body_goes_to_the_steps_result(stage, make_call) -> None:
    stage.http_answers = [HttpResponse(200, (), b"[[1, 2], 3]")]

    end = await send(stage, make_call, api_call(extract=[{"path": "0.1", "as": "second"}]))

    assert isinstance(end, StepDone)
    assert end.writes == {"look-up_result": [[1, 2], 3], "second": 2}


@pytest.mark.anyio
@pytest.mark.parametrize("status", [199, 301, 302, 400, 401, 404, 500, 503, 599])
async def test_a_status_outside_of_2xx_is_an_error_that_shows_the_body_only_as_output(
    stage, make_call, status: int
) -> None:
    stage.http_answers = [HttpResponse(status, (), b"token=hunter2 is wrong")]

    end = await send(stage, make_call, api_call(url="https://crm.example:8443/a?key={{ k }}"), {"k": "s3cret"})

    assert isinstance(end, StepDone)
    assert (end.signal, end.error_type, end.writes) == ("error", "HttpStatus", {})
    assert end.output == "token=hunter2 is wrong"
    assert end.engine_writes == {"_api_status_code": status}
    assert (end.error_message or "").startswith(f"GET https://crm.example:8443 answered {status}")
    assert "hunter2" not in (end.error_message or "") and "s3cret" not in (end.error_message or "")


@pytest.mark.anyio
async def test_a_part_that_is_not_in_the_body_is_an_error(stage, make_call) -> None:
    end = await send(stage, make_call, api_call(extract=[{"path": "data.nothing", "as": "x"}]))

    assert isinstance(end, StepDone)
    assert (end.error_type, end.writes) == ("MissingContext", {})
    assert "data.nothing" in (end.error_message or "")


@pytest.mark.parametrize(
    ("content_type", "body", "want"),
    [
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/problem+json; charset=utf-8", b'"text"', "text"),
        ("application/json", b'"x"', "x"),
        ("text/plain", b'{"a": 1}', {"a": 1}),
        ("text/plain", b"12", "12"),
        ("application/json", b"<html>", "<html>"),
        ("application/json", b'{"a": NaN}', '{"a": NaN}'),
        ("application/json", b'{"a": 1e999}', '{"a": 1e999}'),
        ("application/json", b'"\\ud800"', '"\\ud800"'),
        ("application/json", b'{"a":1,"a":2}', '{"a":1,"a":2}'),
        ("application/json", b"[" * 900 + b"]" * 900, "[" * 900 + "]" * 900),
        ("application/json", b"[" * 90000, "[" * 90000),
        ("application/json", b"9" * 5000, "9" * 5000),
        ("application/json", b"\xef\xbb\xbf[1]", [1]),
        ("text/plain; charset=iso-8859-1", b"caf\xe9", "café"),
        ("text/plain; charset=rot13", b"abc", "abc"),
        ("application/octet-stream", b"\xff\xfe\x00", "��\x00"),
        ("", b"", None),
    ],
)
def test_a_body_is_json_where_it_is_json_else_text(content_type: str, body: bytes, want: object) -> None:
    assert decode_body(HttpResponse(200, (("content-TYPE", content_type),), body)) == want


@given(st.binary(max_size=200), st.sampled_from(["application/json", "text/html", "text/plain; charset=latin1", ""]))
def test_whatever_bytes_come_they_become_a_value_that_can_be_stored(body: bytes, content_type: str) -> None:
    value = decode_body(HttpResponse(200, (("content-type", content_type),), body))

    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


# ---------------------------------------------------------------- failures, retries, effects


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("Timeout", "Timeout"),
        ("Connection", "Connection"),
        ("TooLarge", "ResponseTooLarge"),
        ("Blocked", "AddressBlocked"),
        ("Invalid", "InvalidRequest"),
    ],
)
async def test_a_failure_is_unknown_only_where_bytes_were_sent_and_the_call_may_not_be_repeated(
    stage, make_call, kind, want: str
) -> None:
    for sent, may_repeat in [(True, False), (True, True), (False, False), (False, True)]:
        stage.http_answers = [HttpFailure(kind, "it went wrong", sent=sent)]
        end = await send(stage, make_call, api_call(method="POST"), may_repeat=may_repeat)
        if sent and not may_repeat:
            assert end == StepUnknown("POST https://crm.example: it went wrong")
        else:
            assert isinstance(end, StepDone)
            assert (end.signal, end.error_type) == ("error", want)


@pytest.mark.anyio
async def test_a_call_that_may_not_be_repeated_is_made_once_whatever_retry_says(stage, make_call) -> None:
    stage.http_answers = [HttpResponse(503), OK]

    end = await send(stage, make_call, api_call(method="POST", retry={"attempts": 5}), may_repeat=False)

    assert isinstance(end, StepDone)
    assert (end.error_type, len(stage.requests)) == ("HttpStatus", 1)


@pytest.mark.anyio
async def test_without_retry_a_call_is_made_once(stage, make_call) -> None:
    stage.http_answers = [HttpResponse(503), OK]

    await send(stage, make_call, api_call(), may_repeat=True)

    assert len(stage.requests) == 1


@pytest.mark.anyio
async def test_retries_back_off_honour_retry_after_and_end_with_the_last_answer(stage, make_call) -> None:
    stage.http_answers = [
        HttpFailure("Connection", "reset", sent=True),
        HttpFailure("Timeout", "slow", sent=True),
        HttpResponse(429, (("Retry-After", "7"),)),
        HttpResponse(503, (("retry-after", "Fri, 02 Jan 2026 03:04:25 GMT"),)),
        HttpResponse(500, (("Retry-After", "soon"),)),
        HttpResponse(404),
    ]

    retry = {"attempts": 10, "backoffSeconds": 1, "maxBackoffSeconds": 3}
    end = await send(stage, make_call, api_call(retry=retry), may_repeat=True)

    assert stage.slept == [1.0, 2.0, 7.0, 10.0, 3.0]  # the date is 20 s after the start, of which 10 have passed
    assert isinstance(end, StepDone)
    assert end.error_message == "GET https://crm.example answered 404"


@pytest.mark.anyio
async def test_attempts_and_waits_stay_within_the_total_deadline(stage, make_call) -> None:
    stage.seconds_per_request = 4.0
    stage.http_answers = [HttpResponse(503)] * 9
    retry = {"attempts": 9, "backoffSeconds": 1, "maxBackoffSeconds": 1, "deadlineSeconds": 10}

    await send(stage, make_call, api_call(timeoutSeconds=5, retry=retry), may_repeat=True)

    assert [request.timeout for request in stage.requests] == [5.0, 5.0]
    assert stage.elapsed == 9.0


@pytest.mark.parametrize(
    ("retry", "attempt", "got", "left", "want"),
    [
        ({}, 1, HttpResponse(503), 100.0, 1.0),
        ({}, 3, HttpResponse(503), 100.0, None),
        ({}, 1, HttpResponse(400), 100.0, None),
        ({}, 1, HttpResponse(408), 100.0, 1.0),
        ({}, 1, HttpResponse(425), 100.0, 1.0),
        ({}, 1, HttpResponse(501), 100.0, 1.0),
        ({"causes": ["Timeout"]}, 1, HttpResponse(503), 100.0, None),
        ({"causes": ["Timeout"]}, 1, HttpFailure("Timeout", "", True), 100.0, 1.0),
        ({"causes": ["Error"]}, 1, HttpFailure("Timeout", "", True), 100.0, None),
        ({"causes": ["Error"]}, 1, HttpFailure("Connection", "", False), 100.0, 1.0),
        ({}, 1, HttpFailure("Blocked", "", False), 100.0, None),
        ({}, 1, HttpFailure("TooLarge", "", True), 100.0, None),
        ({}, 1, HttpResponse(503, (("Retry-After", "99"),)), 100.0, 99.0),
        ({}, 1, HttpResponse(503, (("Retry-After", "100"),)), 100.0, None),
        ({}, 1, HttpResponse(503, (("Retry-After", "9" * 400),)), 100.0, 1.0),
        ({}, 1, HttpResponse(503, (("Retry-After", "-5"),)), 100.0, 1.0),
        ({}, 1, HttpResponse(503, (("Retry-After", "Mon, 01 Jan 0001 00:00:00 GMT"),)), 100.0, 0.0),
        ({}, 1, HttpResponse(503), 1.0, None),
    ],
)
def test_what_is_retried_and_after_how_long(stage, retry, attempt, got, left, want) -> None:
    assert plan_retry(Retry.read(retry), attempt, got, left, stage.now()) == want
