"""Policy rules in a few words."""

from typing import Any


def rule(name: str, cel: str, verdict: str, at: str = "ToolCall", message: str | None = None) -> dict[str, Any]:
    return {"name": name, "at": at, "cel": cel, "verdict": verdict} | ({"message": message} if message else {})


def allow(name: str, cel: str, **fields: Any) -> dict[str, Any]:
    return rule(name, cel, "Allow", **fields)


def deny(name: str, cel: str, **fields: Any) -> dict[str, Any]:
    return rule(name, cel, "Deny", **fields)


def require(name: str, cel: str, **fields: Any) -> dict[str, Any]:
    return rule(name, cel, "RequireApproval", **fields)


def deny_turn(name: str, cel: str, **fields: Any) -> dict[str, Any]:
    return rule(name, cel, "Deny", at="ModelCall", **fields)


def endpoint(name: str = "central", at: str = "ToolCall", url: str = "http://opa/v1") -> dict[str, Any]:
    return {"name": name, "at": at, "http": {"url": url}}
