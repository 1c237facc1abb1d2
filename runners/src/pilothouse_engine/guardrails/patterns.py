"""Regular expressions by RE2: linear in the text, whatever the pattern and the text are."""

from functools import lru_cache
from typing import Any

import re2

_MAX_MEMORY = 32 * 1024 * 1024
"""What the states of one pattern may take; past it RE2 goes on more slowly, still in linear time."""


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:
    """Return the compiled form of a pattern, with the methods of `re.Pattern`; raises ValueError."""
    options = re2.Options()
    options.log_errors = False  # the library writes to stderr by itself
    options.max_mem = _MAX_MEMORY
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else "it cannot be read"
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
