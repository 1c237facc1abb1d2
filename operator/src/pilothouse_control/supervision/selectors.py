"""Label selectors, as Kubernetes has them."""

from collections.abc import Mapping
from typing import assert_never

from pilothouse_api.v1alpha1.supervisor import LabelRequirement, LabelSelector


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether all parts of a selector hold for labels; one without parts selects everything."""
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(_holds(requirement, labels) for requirement in selector.match_expressions)


def _holds(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    """Tell whether one requirement holds; NotIn holds for a label that is not there, too."""
    key = requirement.key
    match requirement.operator:
        case "In":
            return labels.get(key) in requirement.values
        case "NotIn":
            return labels.get(key) not in requirement.values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            assert_never(requirement.operator)
