"""What the model is shown of a tool result: the whole of it, or head, tail and how to read the rest."""

from collections.abc import Callable

from pilothouse_api.digests import compact_json
from pilothouse_engine.facts import CallCode

READ_TOOL_RESULT = "read_tool_result"
"""Name of the engine's own tool that reads a result in slices."""

HEAD_SHARE = 0.75
"""Share of a cut result that is its head; what a tool says first tends to matter most."""


compact = compact_json
"""Return a JSON value as compact text."""


def error_content(code: CallCode, message: str) -> str:
    """Return an error result as the model reads it."""
    return compact({"error": {"code": code, "message": message}})


def pointer(call_id: str, length: int) -> str:
    """Return how a cut result ends: its id, its length in characters, and how to read the rest."""
    return (
        f"\n[cut: {call_id} has {length} characters; read the rest with"
        f' {READ_TOOL_RESULT} {{"call_id": "{call_id}", "offset": …, "limit": …}}]'
    )


Part = Callable[[str, int, int], str]
"""Returns a stretch of a text as it may be shown."""


def part_of(content: str, start: int, end: int) -> str:
    """Return a stretch of a text as it is."""
    return content[start:end]


def shown_result(call_id: str, content: str, limit: int, part: Part = part_of) -> tuple[str, str]:
    """Return what the model is shown of a result and the pointer behind it, `limit` characters at most (0: all)."""
    if not limit or len(content) <= limit:
        return content, ""
    note = pointer(call_id, len(content))
    return _head_and_tail(content, limit - len(note), "\n…\n", part), note


def cut_result(call_id: str, length: int, shown: str, limit: int) -> str:
    """Return a result of `length` characters, of which the model was shown `shown` so far, in `limit` characters."""
    if len(shown) <= limit:
        return shown
    note = pointer(call_id, length)
    # A result that is cut again keeps one pointer, at its end.
    return _head_and_tail(shown.removesuffix(note), limit - len(note), "\n…\n") + note


def cut_text(text: str, limit: int) -> str:
    """Return a text in at most `limit` characters, with a line where something was left out."""
    if len(text) <= limit:
        return text
    return _head_and_tail(text, limit, f"\n[… cut: this text has {len(text)} characters …]\n")


def _head_and_tail(text: str, limit: int, mark: str, part: Part = part_of) -> str:
    room = max(limit - len(mark), 0)
    if len(text) <= room:
        return text
    head = int(room * HEAD_SHARE)
    return f"{part(text, 0, head)}{mark}{part(text, len(text) - (room - head), len(text))}"


def slice_of(call_id: str, content: str, offset: int, limit: int, longest: int, part: Part = part_of) -> str:
    """Return a slice of a result behind one line that says where it stands; both take at most `longest` characters."""
    most = longest - len(_headline(call_id, len(content), len(content), len(content)))
    end = min(offset + min(limit, most), len(content))
    return _headline(call_id, offset, end, len(content)) + part(content, offset, end)


def _headline(call_id: str, begin: int, end: int, length: int) -> str:
    return f"[{call_id}: characters {begin} to {end} of {length}]\n"
