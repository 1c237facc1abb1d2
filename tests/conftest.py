"""Fixtures for all levels: one event loop library, real clusters."""

import os

import pytest
from hypothesis import Phase, settings

from support.golden import OPTION, Golden

pytest_plugins = ["support.cluster"]

# The same examples each time, so that a change is judged and not luck; HYPOTHESIS_PROFILE=explore looks for new ones.
# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
# For `make test-fast`: the same claims over fewer examples.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=20)
# For `make mutate`: to see that something fails is enough, the smallest example of it interests nobody.
settings.register_profile(
    "mutate", derandomize=True, deadline=None, max_examples=25, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="write golden files anew instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(is_update=request.config.getoption(OPTION))
