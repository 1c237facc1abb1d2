"""Tools of MCP servers (engine.md §3): what is asked of servers, what of their answers is offered to the model.

Speaking to a server is a port; one call of a tool is `steps.mcp`. A plan without MCP servers never loads this.
"""
