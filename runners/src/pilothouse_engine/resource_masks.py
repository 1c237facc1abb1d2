"""What may leave an adapter of `Resources`: objects without the data of Secrets and without what only servers need.

Pure. Keys stay, so that a step can tell that a Secret has one; values are `MASKED`, whoever asks.
"""

from collections.abc import Mapping
from typing import Any

MASKED = "[masked]"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECRET_FIELDS = ("data", "stringData")


def mask_answer(value: Any, *, is_secret: bool = False) -> Any:
    """Return an answer of the API server as it may be shown: an object, or a list of them.

    Masked is every object of kind Secret, wherever in the answer it stands (kinds exist that hold other objects), and
    with `is_secret` the answer itself and the items of a list, which do not say what they are.
    """
    if isinstance(value, list):
        return [mask_answer(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_list = isinstance(value.get("items"), list)
    is_own = value.get("kind") == "Secret" or (is_secret and not is_list)
    shown = {key: mask_answer(item) for key, item in value.items() if key not in ("metadata", "items")}
    if isinstance(value.get("metadata"), dict):
        shown["metadata"] = _mask_metadata(value["metadata"], is_own)
    elif "metadata" in value:
        shown["metadata"] = mask_answer(value["metadata"])
    if "items" in value:
        items = value["items"]
        shown["items"] = [mask_answer(item, is_secret=is_secret) for item in items] if is_list else mask_answer(items)
    if is_own:
        shown |= {field: _mask_values(value[field]) for field in _SECRET_FIELDS if field in value}
    return shown


def _mask_values(data: Any) -> Any:
    return dict.fromkeys(data, MASKED) if isinstance(data, Mapping) else MASKED


def _mask_metadata(metadata: Mapping[str, Any], is_secret: bool) -> dict[str, Any]:
    """Return metadata without managed fields, and without annotations that tools keep whole objects in."""
    shown = {key: mask_answer(item) for key, item in metadata.items() if key not in ("managedFields", "annotations")}
    annotations = metadata.get("annotations")
    if isinstance(annotations, Mapping):
        shown["annotations"] = {
            key: item
            for key, item in annotations.items()
            if key != LAST_APPLIED and not (is_secret and str(item).lstrip()[:1] in ("{", "["))
        }
    return shown
