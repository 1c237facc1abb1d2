"""The desk's tools: an MCP server with logs to search and a service to restart. Made for the example; it keeps nothing.

ops_server.py [--host 127.0.0.1] [--port 8090]
"""

import argparse

from mcp.server.mcpserver import MCPServer

SERVICES = ("checkout", "payments")
LINES = 60

server = MCPServer("ops")


@server.tool()
def search_logs(service: str) -> str:
    """Returns the newest log lines of a service."""
    if service not in SERVICES:
        raise ValueError(f"there is no service {service}; there are {', '.join(SERVICES)}")
    noise = [f"12:{minute:02d}:07 {service} GET /cart 200 {minute * 3 % 40 + 12} ms" for minute in range(LINES)]
    noise[9] = f"12:09:31 {service} order of ana@example.org failed, card 4111 1111 1111 1111 was charged"
    noise[51] = f"12:51:02 {service} upstream payments answers 502 since release 2026.11.3"
    return "\n".join(noise)


@server.tool()
def restart(service: str) -> str:
    """Restarts a service."""
    return f"{service} was restarted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090)
    arguments = parser.parse_args()
    server.run("streamable-http", host=arguments.host, port=arguments.port, stateless_http=True)


if __name__ == "__main__":
    main()
