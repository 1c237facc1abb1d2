"""The journals under test."""

from pathlib import Path

import pytest

from support.journals import BACKENDS, BACKENDS_OF_PROCESSES, Backend


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture(params=BACKENDS_OF_PROCESSES)
def process_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path)
