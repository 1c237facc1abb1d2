"""One installation by Helm for all end-to-end tests, and one namespace for each test."""

import uuid
from collections.abc import Iterator

import pytest

from support.cluster import ForeignCluster
from support.installation import Installation, build_images, install


@pytest.fixture(scope="session")
def images() -> dict[str, dict[str, str]]:
    """Name and archive of the project's images, built before the process enters a network that has no way out."""
    return build_images()


@pytest.fixture(scope="session")
def installation(images: dict[str, dict[str, str]], node_cluster: ForeignCluster) -> Installation:
    """The project's own images and chart on a cluster that runs pods."""
    return install(node_cluster, images)


@pytest.fixture
def namespace(installation: Installation) -> Iterator[str]:
    """A namespace with the runner's ServiceAccount; its runs are printed when a test fails."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    installation.make_namespace(name)
    yield name
    installation.kubectl("delete", "namespace", name, "--wait=false")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show runs, pods and the operator's log beside a failure: a red test without them says nothing."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    fixtures = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and "installation" in fixtures:
        report.sections.append(("cluster", fixtures["installation"].describe(fixtures.get("namespace"))))
