"""Label selectors select what Kubernetes' own would."""

from typing import Any

import pytest

from pilothouse_api.v1alpha1.supervisor import LabelSelector
from pilothouse_control.supervision.selectors import selects

LABELS = {"team": "pay", "tier": "", "env": "prod"}


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator} | ({"values": list(values)} if values else {})]}


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        ({}, True),
        ({"matchLabels": {"team": "pay"}}, True),
        ({"matchLabels": {"team": "pay", "env": "test"}}, False),
        ({"matchLabels": {"tier": ""}}, True),
        ({"matchLabels": {"other": ""}}, False),
        (needs("team", "In", "pay", "sell"), True),
        (needs("team", "In", "sell"), False),
        (needs("other", "In", "x"), False),
        (needs("team", "NotIn", "sell"), True),
        (needs("team", "NotIn", "pay"), False),
        (needs("other", "NotIn", "x"), True),
        (needs("tier", "Exists"), True),
        (needs("other", "Exists"), False),
        (needs("other", "DoesNotExist"), True),
        (needs("tier", "DoesNotExist"), False),
        ({"matchLabels": {"team": "pay"}, **needs("env", "In", "test")}, False),
    ],
)
def test_a_selector_selects_by_all_of_its_parts(selector: dict[str, Any], want: bool) -> None:
    assert selects(LabelSelector.model_validate(selector), LABELS) is want


def test_a_selector_that_selects_everything_selects_what_has_no_labels() -> None:
    assert selects(LabelSelector(), {})
