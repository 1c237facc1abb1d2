"""JSON as it is kept and sent: no value becomes another, and what names a value stays what it was."""

import json
from math import inf, isnan, nan
from typing import Any

import pytest

from pilothouse_api.batches import Batch, decode_batch, encode_batch
from pilothouse_api.digests import compact_json
from pilothouse_api.exact_json import json_bytes
from pilothouse_engine.executions import arguments_digest


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [None, True]}, '{"b":1,"a":[null,true]}'),
        ((), "[]"),
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (1e15, "1000000000000000.0"),
        (1e-7, "1e-7"),
        (1e-5, "0.00001"),
        (5e-324, "5e-324"),
        (2**63, "9223372036854775808"),
        (-(2**64), "-18446744073709551616"),
        ({"a": 10**40, "b": None, "c": 1e-7}, '{"a":10000000000000000000000000000000000000000,"b":null,"c":1e-7}'),
        ('\x00\x1f\x7f\b\f\n\r\t"/\\', r'"\u0000\u001f' + "\x7f" + r'\b\f\n\r\t\"/\\"'),
        ("é\u2028\U0001f600\ufeff", '"é\u2028\U0001f600\ufeff"'),
        ("null", '"null"'),
        ({"ˋ": None, "n": -1, "m": 2**64 - 1}, '{"ˋ":null,"n":-1,"m":18446744073709551615}'),
        ([nan, inf, -inf, None], "[NaN,Infinity,-Infinity,null]"),
        ({"a": {"b": [-nan]}}, '{"a":{"b":[NaN]}}'),
        ([nan, 10**40], "[NaN,10000000000000000000000000000000000000000]"),
    ],
)
def test_a_value_is_written_as_it_is(value: Any, text: str) -> None:
    assert json_bytes(value) == text.encode()
    assert compact_json(value) == text


@pytest.mark.parametrize(
    ("value", "error"),
    [({"a": "\ud800"}, UnicodeEncodeError), ({"\udfff": 1}, UnicodeEncodeError), ([object()], TypeError)],
)
def test_what_is_no_json_in_utf8_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        json_bytes(value)


def nested(depth: int) -> list[Any]:
    """Return a list in a list, so many deep."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_nested_too_deeply_is_refused() -> None:
    assert json_bytes(nested(500)) == b"[" * 501 + b"]" * 501
    with pytest.raises(RecursionError):
        json_bytes(nested(100_000))


def test_half_of_a_surrogate_pair_survives_in_a_compact_text_and_in_a_journal() -> None:
    value = {"half": "\ud800", "b": None, "é": nan}
    assert compact_json(value) == '{"half":"\ud800","b":null,"é":NaN}'
    batch = decode_batch(encode_batch(Batch(1, 0, (value,))))
    assert batch is not None
    (kept,) = batch.entries
    assert (kept["half"], kept["b"], isnan(kept["é"])) == ("\ud800", None, True)


@pytest.mark.parametrize("value", [nan, inf, -inf, 1e300, -1e-300, 2**70, -(2**70), None, "\u2028"])
def test_a_journal_gives_back_what_it_was_given(value: Any) -> None:
    batch = decode_batch(encode_batch(Batch(1, 0, ({"value": value, "none": None},))))
    assert batch is not None
    assert repr(batch.entries) == repr(({"value": value, "none": None},))


def test_a_batch_of_an_earlier_release_is_read() -> None:
    line = b'{"crc":"b011a3d9","attempt":1,"seq":0,"entries":[{"v":1e+16,"w":1e-7}]}'
    batch = decode_batch(line)
    assert batch is not None
    assert batch.entries == ({"v": 1e16, "w": 1e-7},)


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'),
        ('{"a": 18446744073709551616}', ' {"a":18446744073709551616}\n'),
        ("", "{}"),
        (" ", "{}"),
        (r'{"a": "\ud83d\ude00"}', json.dumps({"a": "\U0001f600"}, ensure_ascii=False)),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
    ],
)
def test_arguments_that_say_the_same_have_one_digest(arguments: str, same: str) -> None:
    assert arguments_digest(arguments) == arguments_digest(same)


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": 1e999}', r'"\ud800"', "\ud800", "{", "[1,]", "01", "9" * 5000, "[" * 100_000, '"\x00"']
)
def test_arguments_that_are_no_json_are_told_apart_by_their_text(text: str) -> None:
    assert arguments_digest(text) != arguments_digest(text + " ")
