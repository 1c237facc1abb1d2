"""What loading LiteLLM may not do."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_importing_litellm_reaches_for_nothing() -> None:
    """No price list from the internet, no .env file, no chatter."""
    code = (
        "import asyncio, socket\n"
        "def refuse(*a, **k): raise SystemExit('network')\n"
        "socket.getaddrinfo = refuse\n"
        "from pilothouse_runner.adapters.models.litellm import _library\n"
        "library = asyncio.run(_library())\n"
        "assert library.suppress_debug_info and not library.telemetry"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("LITELLM")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
