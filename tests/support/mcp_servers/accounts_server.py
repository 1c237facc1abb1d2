"""A small MCP server of the official SDK, well behaved: accounts and refunds, for demos and tests.

`python accounts_server.py` speaks over stdio; with `--port 8080 [--host 0.0.0.0]` it listens at `/mcp`. It needs the
SDK alone, so it runs from the runner's image too.
"""

import argparse
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

ACCOUNTS: dict[str, dict[str, Any]] = {
    "c-17": {"customer": "c-17", "plan": "Pro", "charges": [{"invoice": 41, "eur": 49}, {"invoice": 42, "eur": 49}]},
    "c-18": {"customer": "c-18", "plan": "Free", "charges": []},
}

server = MCPServer("accounts", log_level="ERROR")
refunds: list[dict[str, Any]] = []


@server.tool()
def get_account(customer: str) -> dict[str, Any]:
    """Returns plan and charges of a customer."""
    if customer not in ACCOUNTS:
        raise ToolError(f"there is no customer {customer}; there are {', '.join(ACCOUNTS)}")
    return ACCOUNTS[customer]


@server.tool()
def refund(customer: str, invoice: int, eur: float) -> dict[str, Any]:
    """Pays money back to a customer, for one invoice."""
    charges = get_account(customer)["charges"]
    if not any(charge["invoice"] == invoice and charge["eur"] >= eur for charge in charges):
        raise ToolError(f"invoice {invoice} of {customer} is not of {eur:g} EUR or more")
    refunds.append({"customer": customer, "invoice": invoice, "eur": eur})
    return {"refund": len(refunds), "eur": eur}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    asked = parser.parse_args()
    if asked.port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host=asked.host, port=asked.port)


if __name__ == "__main__":
    main()
