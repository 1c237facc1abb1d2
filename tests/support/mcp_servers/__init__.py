"""Real MCP servers that tests start: ones of the official SDK, and ones that break its rules on the wire."""
