"""What everybody who names tools or headers of MCP servers must agree on."""

import re

ALL_TOOLS = "*"
"""In `allow`: all tools that the server lists."""

# What every provider takes; the longest name that one of them takes has 64 characters.
_OFFERED = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SERVER = re.compile(r"[A-Za-z_](?:[A-Za-z0-9-]|_(?!_))*")

_CLIENTS_OWN = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host", "idempotency-key"),
        *("last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "te", "trailer"),
        *("transfer-encoding", "upgrade", "user-agent"),
    }
)


def offered_name(server: str, tool: str) -> str:
    """Return the name that a model calls a tool of a server by."""
    return f"{server}__{tool}"


def is_offerable(name: str) -> bool:
    """Tell whether every provider takes a tool of that name."""
    return _OFFERED.fullmatch(name) is not None


def is_server_name(name: str) -> bool:
    """Tell whether tools of a server of that name can be offered, under names that no other server's tools have."""
    return _SERVER.fullmatch(name) is not None and not name.endswith("_")


def is_clients_own(header: str) -> bool:
    """Tell whether the client sets a header itself, so that an author cannot."""
    name = header.lower()
    return name in _CLIENTS_OWN or name.startswith("mcp-param-")
