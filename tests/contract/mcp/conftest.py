"""A client, and what must be true after each test: no task, no child process is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_runner.adapters.mcp import SdkMcp
from support.mcp_servers.clients import MakeClient, children, is_alive

LONGEST_END = 40.0


@pytest.fixture
def secrets() -> DictSecrets:
    return DictSecrets({"gh/token": "Bearer first-secret-value"})


@pytest.fixture
def a_client(secrets: DictSecrets, tmp_path: Path) -> MakeClient:
    @asynccontextmanager
    async def make(**more: Any) -> AsyncIterator[SdkMcp]:
        before = children()
        mcp = SdkMcp(secrets, **{"tokens": tmp_path / "tokens", **more})
        try:
            yield mcp
        finally:
            async with asyncio.timeout(LONGEST_END):
                await mcp.end_visit()
            left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("pilothouse-mcp")]
            assert left == []
            assert [pid for pid in children() - before if is_alive(pid)] == []

    return make
