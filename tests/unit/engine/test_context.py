"""What may be written to the run's context, and how large it may grow (engine.md §3, §6)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_api.digests import text_digest
from pilothouse_engine.context import delta_for_model, fit_writes
from pilothouse_engine.results import compact

POINTER_BYTES = len(compact({"ref": "journal/t1/k", "bytes": 100, "digest": text_digest("")}))
VALUES = st.integers() | st.text() | st.lists(st.integers(), max_size=30)


def fit(writes: dict[str, Any], cap: int, used: int = 2) -> dict[str, Any]:
    return fit_writes({}, used, writes, cap, "journal/t1")


def test_a_value_that_fits_is_kept_as_a_copy_of_its_own() -> None:
    given = {"k": {"list": [1]}}
    fitted = fit(given, 1000)
    given["k"]["list"].append(2)
    assert fitted == {"k": {"list": [1]}}


def test_a_value_that_fills_the_context_to_the_byte_is_kept_and_one_byte_more_is_a_pointer() -> None:
    writes = {"k": "é" * 149}
    exact = 2 + len('"k":,') + len('""') + 2 * 149
    assert fit(writes, exact) == writes
    assert fit(writes, exact - 1)["k"] == {
        "ref": "journal/t1/k",
        "bytes": 300,
        "digest": text_digest(compact("é" * 149)),
    }


def test_what_was_written_before_counts_key_and_value() -> None:
    small = {"a" * 50: 1}
    assert fit({**small, "k": "v" * 300}, 360)["k"]["bytes"] == 302
    assert fit({"k": "v" * 300}, 360)["k"] == "v" * 300
    many = {f"key-{n:03}": n for n in range(100, 200)}
    assert len(compact(fit(many, 700)).encode()) <= 700


def test_keys_of_the_engine_are_dropped_and_the_others_kept() -> None:
    assert fit({"_last_error": 1, "k": 2, "k_": 3}, 1000) == {"k": 2, "k_": 3}


def test_a_key_for_which_a_pointer_has_no_room_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    cap = 2 + 2 * (POINTER_BYTES + len('"k":,'))
    fitted = fit({"a": "x" * 300, "b": "y" * 300, "c": "secret" * 50, "d": "z" * 300}, cap)
    assert list(fitted) == ["a", "b"]
    assert "keys_left_out=2" in caplog.text
    assert "secret" not in caplog.text


def test_a_key_that_is_longer_than_the_cap_is_left_out_and_the_next_one_is_kept() -> None:
    assert fit({"k" * 2000: 1, "b": 2}, 1000) == {"b": 2}


def test_a_value_that_is_replaced_makes_room_for_the_new_one() -> None:
    context = {"k": "a" * 300, "other": "b" * 100}
    used = len(compact(context))
    new = {"k": "c" * 300, "more": "d" * 20}
    exact = used + len(',"more":""') + 20
    assert fit_writes(context, used, new, exact, "journal/t1") == new
    assert fit_writes(context, used, {"k": "c" * 301}, used - 1, "journal/t1")["k"]["bytes"] == 303


def test_a_replacement_that_is_left_out_leaves_the_old_values_room_taken() -> None:
    context = {"k": 1, "other": "b" * 100}
    used = len(compact(context))
    assert fit_writes(context, used, {"k": "c" * 300, "m": 2}, used + len(',"m":2') - 1, "journal/t1") == {}


@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=9), st.integers(0, 400))
def test_the_context_stays_under_its_cap_whatever_is_written(writes: dict[str, Any], cap: int) -> None:
    fitted = fit(writes, cap)
    assert not fitted or len(json.dumps(fitted, ensure_ascii=False, separators=(",", ":")).encode()) <= cap
    assert fitted.keys() <= writes.keys()


@pytest.mark.parametrize(
    ("writes", "arguments", "want"),
    [
        ({"a": 1, "b": 2}, {}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": 2}),
        ({"a": 1, "b": 2}, {"a": 5}, {"a": 1, "b": 2}),
        ({"_a": 1, "b_": 2}, {}, {"b_": 2}),
    ],
)
def test_the_delta_is_what_a_tool_changed_without_what_it_was_given(writes: Any, arguments: Any, want: Any) -> None:
    assert delta_for_model(writes, arguments) == want
