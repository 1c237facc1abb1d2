"""An MCP server of the official SDK over HTTP that tells what a caller showed: `python whoami_server.py PORT`."""

import base64
import json
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("whoami", log_level="ERROR")


@server.tool()
def whoami(ctx: Context) -> dict[str, Any]:
    """Returns the scheme of the caller's Authorization, and the claims of a token or the text of what is none."""
    scheme, _, shown = (ctx.headers or {}).get("authorization", "").partition(" ")
    parts = shown.split(".")
    if len(parts) != 3:
        return {"scheme": scheme, "text": shown[::-1]}  # backwards: what was sent is masked in what comes back
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    pod = claims.get("kubernetes.io", {}).get("pod", {}).get("name", "")
    return {"scheme": scheme, "audiences": claims["aud"], "seconds": claims["exp"] - claims["iat"], "pod": pod}


if __name__ == "__main__":
    server.run("streamable-http", host="0.0.0.0", port=int(sys.argv[1]))
