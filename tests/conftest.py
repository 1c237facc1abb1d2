"""Fixtures for all levels: one event loop library, real clusters."""

import pytest

pytest_plugins = ["support.cluster"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
