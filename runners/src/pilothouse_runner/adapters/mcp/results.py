"""What the SDK read, as values of the engine's port."""

from collections.abc import Sequence
from typing import Any

from mcp import types

from pilothouse_engine.ports import McpResult, McpTool
from pilothouse_engine.strict_json import check_json
from pilothouse_runner.adapters.mcp.credentials import mask


def tools_of(listed: Sequence[types.Tool]) -> tuple[McpTool, ...]:
    """Return listed tools without the server's hints about them."""
    return tuple(McpTool(_text(tool.name), _text(tool.description or ""), tool.input_schema) for tool in listed)


def result_of(result: types.CallToolResult, secrets: set[str]) -> McpResult:
    """Return what a tool gave, without the credentials that its server was sent; raises JsonError."""
    structured = result.structured_content
    if structured is not None:
        check_json(structured)
        structured = _masked(structured, secrets)
    text = "\n".join(mask(_text(_block_text(block)), secrets) for block in result.content)
    return McpResult(text, structured, result.is_error)


def _block_text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type} {block.mime_type[:60]}, {len(block.data):,} characters of base64, left out]"
        case types.ResourceLink():
            return f"[resource {block.name[:120]}: {str(block.uri)[:500]}]"
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.EmbeddedResource():
            return f"[resource {str(block.resource.uri)[:500]}, binary, left out]"


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _masked(value: Any, secrets: set[str]) -> Any:
    if not secrets:
        return value
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, dict):
        return {mask(key, secrets): _masked(item, secrets) for key, item in value.items()}
    return [_masked(item, secrets) for item in value] if isinstance(value, list) else value
