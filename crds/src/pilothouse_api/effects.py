"""What a call does outside."""

from typing import Literal

Effect = Literal["ReadOnly", "Idempotent", "Once"]
"""What a call does outside (engine.md §10): ReadOnly may run in parallel and be repeated, Idempotent may be
repeated with its key, Once runs at most once."""
