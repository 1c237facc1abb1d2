"""Pages of a list over several clusters: runs of equal names are told apart, and none is shown twice."""

from pilothouse_console.listing import Filter, build_page
from pilothouse_console.summaries import RunSummary


def run(cluster: str | None, name: str, created_at: str = "2026-01-01T00:00:00Z") -> RunSummary:
    return RunSummary(namespace="ns", name=name, uid=f"{cluster}-{name}", created_at=created_at, cluster=cluster)


def test_equal_runs_of_several_clusters_stand_on_pages_once_each() -> None:
    runs = [run(cluster, name) for name in ("r1", "r2", "r3") for cluster in (None, "b", "c")]
    seen: list[str] = []
    token = None
    while True:
        page = build_page(reversed(runs), Filter(), 2, token)
        seen += [one.uid for one in page.items]
        token = page.token
        if token is None:
            break
    assert seen == [one.uid for one in runs]


def test_the_newest_run_is_first_whichever_cluster_it_is_of() -> None:
    runs = [
        run("b", "old", "2026-01-01T00:00:00Z"),
        run(None, "new", "2026-01-03T00:00:00Z"),
        run("c", "mid", "2026-01-02T00:00:00Z"),
    ]
    assert [one.name for one in build_page(runs, Filter(), 10, None).items] == ["new", "mid", "old"]
