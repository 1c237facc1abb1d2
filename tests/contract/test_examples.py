"""The examples run on a laptop as they are; what they do on real pods is in tests/e2e."""

import functools
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[2]


def run_example(folder: Path, name: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run an example in an empty folder, as `pilothouse run` would be typed, and return the AgentRun that it prints."""
    command = [sys.executable, "-m", "pilothouse_cli", "run", str(ROOT / "examples" / name), "-o", "json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def steps_of(run: dict[str, Any]) -> list[str]:
    return [step["id"] for step in run["status"]["run"]["steps"]]


@pytest.fixture
def orders() -> Iterator[int]:
    """The orders service of the report, on loopback; yields its port."""
    folder = str(ROOT / "examples" / "daily-report" / "data")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()


def test_support_triage_answers_the_ticket(tmp_path: Path) -> None:
    run = run_example(tmp_path, "support-triage")

    assert run["status"]["result"] == {
        "answer": "Invoice 41 was charged twice, 30 EUR come back to you.",
        "refund": 30,
    }
    assert steps_of(run) == ["classify", "investigate", "reply"]
    assert run["status"]["run"]["toolCalls"] == {"account_lookup": 2, "add_note": 1}


def test_daily_report_fetches_sums_and_writes(tmp_path: Path, orders: int) -> None:
    run = run_example(tmp_path, "daily-report", "--input", "host=127.0.0.1", "--input", f"port={orders}")

    assert run["status"]["result"]["totals"]["cents"] == 21450
    assert steps_of(run) == ["fetch", "sum-up", "write", "publish"]


@pytest.mark.parametrize(
    ("review", "stars", "branch"),
    [("It arrived broken.", 1, "apologise"), ("A great shop.", 5, "thanks"), ("It is a shop.", 3, "thanks")],
)
def test_review_router_takes_the_branch_of_its_rating(tmp_path: Path, review: str, stars: int, branch: str) -> None:
    run = run_example(tmp_path, "review-router", "--input", f"review={review}")

    assert run["status"]["result"]["stars"] == stars
    assert steps_of(run) == ["rate", "choose", branch, "answer"]


def test_an_agent_that_never_stops_asking_is_told_so_and_then_stopped(tmp_path: Path) -> None:
    run = run_example(tmp_path, "supervised", code=3)

    assert run["status"]["phase"] == "Aborted"
    assert run["status"]["result"] == {"answer": "Somebody will look into your order and write to you."}
    assert steps_of(run) == ["look", "hand-over"]
    assert run["status"]["run"]["toolCalls"] == {"order_status": 5}
    actions = run["status"]["supervision"]["actions"]
    assert [(action["action"], action["source"], action["turn"], action["landedTurn"]) for action in actions] == [
        ("Steer", "Rule/asks-often", 3, 4),
        ("Abort", "Rule/never-stops", 5, 5),
    ]


def test_the_refund_desk_has_a_claim_researched_and_pays_once_a_person_agrees(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilothouse_cli"]
    desk = subprocess.Popen(
        [*command, "run", str(ROOT / "examples" / "refund-desk"), "-o", "json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    approve = [*command, "approve", "--selector", "team=billing", "--tool", "pay", "--yes"]
    while (
        desk.poll() is None
        and "landed"
        not in subprocess.run(approve, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False).stdout
    ):
        pass
    out, err = desk.communicate(timeout=200)

    assert desk.returncode == 0, err
    run = json.loads(out)
    assert run["status"]["result"] == {"decision": "Invoice 41 was charged twice; 30 EUR were paid back."}
    assert run["status"]["run"]["toolCalls"] == {"research": 1, "pay": 1}
    assert [child["exit"]["signal"] for child in run["status"]["children"]] == ["default"]
