"""What leaves the adapter: no data of a Secret, wherever it hides, and nothing that only servers need."""

import json
from typing import Any

import pytest

from pilothouse_engine.resource_masks import LAST_APPLIED, MASKED, mask_answer

VALUE = "c2VjcmV0LXZhbHVl"


def a_secret(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"password": VALUE}, **fields}


def without_kind(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in a_secret(**fields).items() if key not in ("apiVersion", "kind")}


@pytest.mark.parametrize(
    ("answer", "is_secret"),
    [
        (a_secret(), True),
        (a_secret(), False),
        (a_secret(stringData={"password": VALUE}), False),
        (a_secret(data=VALUE), False),
        ({"kind": "SecretList", "metadata": {}, "items": [without_kind(), without_kind()]}, True),
        ({"kind": "List", "items": [a_secret()]}, False),
        ({"kind": "Bundle", "spec": {"manifests": [{"deep": a_secret()}]}}, False),
        (a_secret(metadata={"annotations": {LAST_APPLIED: json.dumps(a_secret())}}), True),
        (a_secret(metadata={"annotations": {"kapp.example/original": f" {json.dumps(a_secret())}"}}), True),
        (without_kind(metadata={"managedFields": [{"fieldsV1": {f"f:{VALUE}": {}}}]}), True),
    ],
)
def test_no_data_of_a_secret_is_left(answer: dict[str, Any], is_secret: bool) -> None:
    assert VALUE not in json.dumps(mask_answer(answer, is_secret=is_secret))


def test_the_keys_of_a_secret_stay() -> None:
    shown = mask_answer(a_secret(type="Opaque"), is_secret=True)
    assert shown == a_secret(type="Opaque", data={"password": MASKED})


def test_other_objects_lose_only_what_servers_and_tools_keep_for_themselves() -> None:
    annotations = {LAST_APPLIED: "{}", "note": "{as it is}"}
    metadata = {"name": "a", "managedFields": [{}], "annotations": annotations, "labels": {"a": "b"}}
    answer = {"kind": "ConfigMap", "metadata": metadata, "data": {"password": "shown"}, "items": None}
    assert mask_answer(answer) == {
        "kind": "ConfigMap",
        "metadata": {"name": "a", "annotations": {"note": "{as it is}"}, "labels": {"a": "b"}},
        "data": {"password": "shown"},
        "items": None,
    }


@pytest.mark.parametrize("odd", [None, 1, "text", [1, {"metadata": "x"}], {"metadata": None, "items": {"a": 1}}])
def test_what_is_no_object_passes_as_it_is(odd: Any) -> None:
    assert mask_answer(odd) == odd
