"""A plan as it is stored: one text, known by its digest, and the texts in it by their keys."""

import json
from typing import TYPE_CHECKING, Any

from pilothouse_api.digests import text_digest

if TYPE_CHECKING:
    from pilothouse_api import structs
    from pilothouse_api.v1alpha1.common import TextSource


class IntegrityError(Exception):
    """A text of the plan is missing or is not what was planned (exit `error`, reason IntegrityViolation)."""


def plan_body(text: str, want_digest: str | None) -> dict[str, Any]:
    """Return the JSON object of a plan's text; raises ValueError for another digest than the wanted, or another form.

    A text of the wanted digest is the one that `Plan.encode` made of a plan that was valid.
    """
    if want_digest is not None and text_digest(text) != want_digest:
        raise ValueError(f"the plan's digest is {text_digest(text)}, but the run's status says {want_digest}")
    raw = json.loads(text)
    if not isinstance(raw, dict) or raw.get("format") != 1:
        raise ValueError("the plan is not of the format 1, the one that this version reads")
    return raw


def text_key(source: "TextSource | structs.TextSource") -> str:
    """Return the key of a text in `Plan.texts`: `artifact:name@version` or `configmap:name/key` as it is written."""
    if source.artifact is not None:
        return f"artifact:{source.artifact}"
    if source.config_map_key_ref is not None:
        return f"configmap:{source.config_map_key_ref.name}/{source.config_map_key_ref.key}"
    raise ValueError("an inline text has no key")
