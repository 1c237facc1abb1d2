"""Prices and context windows from the table that LiteLLM ships, read without importing it (3 s, 190 MB)."""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.account import stated_price

_FILE = "model_prices_and_context_window_backup.json"


def price(endpoint: ModelEndpoint) -> tuple[float, float] | None:
    """Return US dollars per million (input, output) tokens: the manifest's, else the table's, else None."""
    stated = stated_price(endpoint)
    if stated is not None:
        return stated
    row = _row(endpoint.name)
    costs = [row.get("input_cost_per_token"), row.get("output_cost_per_token")]
    if not all(isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0 for cost in costs):
        return None
    # Rounded to a millionth of a dollar: 4e-07 * 1e6 is 0.39999999999999997.
    return round(float(costs[0] or 0) * 1e6, 6), round(float(costs[1] or 0) * 1e6, 6)


def context_window(endpoint: ModelEndpoint) -> int | None:
    """Return the window in tokens: the manifest's, else the table's, else None."""
    if endpoint.context_window is not None:
        return endpoint.context_window
    window = _row(endpoint.name).get("max_input_tokens")
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None


def _row(name: str) -> Mapping[str, Any]:
    table = _table()
    row = table.get(name)
    if not isinstance(row, Mapping):
        provider, _, model = name.partition("/")
        row = table.get(model)
        # The same model costs differently elsewhere: only the named provider's own row counts.
        if not isinstance(row, Mapping) or not str(row.get("litellm_provider")).startswith(provider):
            return {}
    return row


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    spec = find_spec("litellm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    try:
        table = json.loads((Path(spec.submodule_search_locations[0]) / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # another version keeps it elsewhere: then prices are unknown, which is safe
    return table if isinstance(table, Mapping) else {}
