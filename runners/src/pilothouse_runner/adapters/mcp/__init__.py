"""MCP servers over the official SDK. Importing this package does not import the SDK: that takes longer than a runner's
start, and most runs ask no server.
"""

from pilothouse_runner.adapters.mcp.client import SdkMcp

__all__ = ["SdkMcp"]
