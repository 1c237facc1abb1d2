"""Mail addresses, internationalised ones and address literals too."""

from collections.abc import Iterator

from pilothouse_engine.guardrails.detectors.views import Finding, View
from pilothouse_engine.guardrails.patterns import compile_pattern

_ADDRESS = compile_pattern(
    r"""(?:[\p{L}\p{N}][\p{L}\p{M}\p{N}._%+'&-]*|"[^"\s@][^"\n@]*")@"""
    r"(?:\[(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|IPv6:[0-9A-Fa-f:.]+)\]|[\p{L}\p{N}](?:[\p{L}\p{M}\p{N}.-]*[\p{L}\p{M}\p{N}])?)"
)
_TOP_LEVEL = compile_pattern(r"[\p{L}\p{M}]{2}[\p{L}\p{M}]*|xn--[0-9A-Za-z-]+")
_LONGEST_DOMAIN = 253
_NO_TOP_LEVEL = frozenset(
    {"png", "jpg", "jpeg", "gif", "webp", "svg", "css", "js", "ts", "html", "json", "yaml", "yml"}
)
"""What stands after a dot in names of files, `icon@2x.png`, and is no domain."""


def find_emails(view: View) -> Iterator[Finding]:
    """Yield mail addresses."""
    if "@" not in view.folded:
        return
    for match in _ADDRESS.finditer(view.folded):
        start, end = match.span()
        local, _, domain = match.group().rpartition("@")
        size = _domain_size(domain)
        is_repository = local == "git" and view.folded[end : end + 1] == ":"
        if size and not is_repository:
            yield view.original(start, end - len(domain) + size, "Email")


def _domain_size(domain: str) -> int:
    """Return how much of a text is a domain, 0 for none: a sentence or a number may go on right behind it."""
    if domain.startswith("["):
        return len(domain)
    labels = domain[:_LONGEST_DOMAIN].split(".")
    while len(labels) > 1 and not _is_domain(labels):
        labels.pop()
    return len(".".join(labels)) if len(labels) > 1 else 0


def _is_domain(labels: list[str]) -> bool:
    if not all(0 < len(label) <= 63 and label[0] != "-" and label[-1] != "-" for label in labels):
        return False
    return _TOP_LEVEL.fullmatch(labels[-1]) is not None and labels[-1].lower() not in _NO_TOP_LEVEL
