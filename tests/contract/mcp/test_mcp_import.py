"""The SDK takes longer to import than a runner to start: nothing but a call to a server brings it in."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


PROBE = """
import sys
import pilothouse_runner.assembly, pilothouse_runner.process, pilothouse_runner.adapters.mcp
import pilothouse_engine.mcp.tools, pilothouse_engine.steps.mcp
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("mcp", "mcp_types", "httpx2", "opentelemetry")))
"""


def test_a_runner_starts_without_the_sdk() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "[]"
