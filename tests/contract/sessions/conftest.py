"""The stores under test."""

from pathlib import Path

import pytest

from support.sessions import STORES, STORES_OF_PROCESSES, SessionStore


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return STORES[request.param](tmp_path)


@pytest.fixture(params=STORES_OF_PROCESSES)
def process_store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return STORES[request.param](tmp_path)
