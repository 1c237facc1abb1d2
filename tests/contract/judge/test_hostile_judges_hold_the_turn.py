"""Whatever becomes of a judge, under Sync nothing of the next turn happens before its supervisor's safe verdict.

Whole local runs: the engine with its barrier, the supervision beside it, the judge, and an endpoint over HTTP.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilothouse_engine.script import parse_script
from pilothouse_runner.judge import local
from support.stub_models import stub_server
from support.terminal import Inside

ROUTER = {"kind": "Router", "router": {"conditions": [{"cel": "true", "signal": "default"}]}}
PAY = {"name": "pay", "description": "Pays.", "inlineStep": ROUTER, "effect": "Once"}
AGENTS_SCRIPT = {
    "turns": [
        {"toolCalls": [{"name": "pay", "arguments": {"n": 1}}, {"name": "pay", "arguments": {"n": 2}}]},
        {"toolCalls": [{"name": "pay", "arguments": {"n": 3}}]},
        {"text": '{"outcome": "resolved", "result": "paid"}'},
    ]
}
ABORTED = 3
"""Exit code of the command for a run that was aborted."""
PASSED = """{text: '{"passed": true, "reason": ""}'}"""


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Inside:
    monkeypatch.setattr(local, "RETRY_PAUSES", (0.01, 0.01))
    return Inside(monkeypatch, tmp_path)


def manifests(**judge: Any) -> str:
    """A run of two calls in its first turn and one in its second, under a Sync supervisor with a judge."""
    agent = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": json.dumps(AGENTS_SCRIPT)}, "maxOutputTokens": 100},
        "steering": {"inline": "Pay."},
        "tools": [PAY],
        "outcome": {"enum": ["resolved"]},
    }
    ended = dict.fromkeys(("error", "max_iterations", "budget_exceeded", "aborted", "unrecoverable"), "failed")
    steps = [
        {"id": "work", "kind": "Agent", "agent": agent, "routes": {"resolved": "end", **ended}},
        {"id": "failed", "kind": "Response", "response": {"mapping": {"error": "_last_error"}}},
    ]
    watched = {"model": "careful", "criteria": {"inline": "Pay twice at most."}, "timeoutSeconds": 20, **judge}
    kinds = {
        "Workflow": ("payments", {"supervisorRefs": [{"name": "guard"}], "steps": steps}),
        "Supervisor": ("guard", {"enforcement": "Sync", "onViolation": "Abort", "judge": watched}),
    }
    return yaml.safe_dump_all(
        {"apiVersion": "pilothouse.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, (name, spec) in kinds.items()
    )


def run(inside: Inside, verdicts: str, code: int, **judge: Any) -> tuple[dict[str, Any], int]:
    """Return the run at its end, and how often the judge's endpoint was asked."""
    with stub_server(parse_script(verdicts)) as endpoint:
        entry = {"name": "careful", "model": "openai/scripted", "apiBase": endpoint.url, "maxOutputTokens": 100}
        inside.write("models.yaml", json.dumps({"models": [entry]}))
        inside.write("flow.yaml", manifests(**judge))
        inside.type("run", "flow.yaml", "--name", "r1", "--judge-models", "models.yaml", code=code)
        shown: dict[str, Any] = json.loads(inside.type("show", "r1", "-o", "json"))
        return shown, len(endpoint.requests)


def paid(shown: dict[str, Any]) -> int:
    calls: int = shown["status"]["run"]["toolCalls"].get("pay", 0)
    return calls


def iterations(shown: dict[str, Any]) -> int:
    """Return how often the agent's model was asked."""
    step = next(step for step in shown["status"]["run"]["steps"] if step["id"] == "work")
    asked: int = step["iterations"]
    return asked


WAYS = [
    ("turns: [{error: {kind: Timeout}}]\nrepeat: Last", "Timeout", {"timeoutSeconds": 1}),
    ("turns: [{error: {kind: Disconnect}}]\nrepeat: Last", "Unavailable", {}),
    ("turns: [{error: {kind: ServerError}}]\nrepeat: Last", "Unavailable", {}),
    ("turns: [{error: {kind: Garbage}}]\nrepeat: Last", "BadAnswer", {}),
    ("turns: [{text: 'All is well.'}]\nrepeat: Last", "BadAnswer", {}),
    ("turns: [{error: {kind: Refused}}]\nrepeat: Last", "Refused", {}),
    (f"turns: [{PASSED}]", "UnknownModel", {"model": "other"}),
]


@pytest.mark.parametrize(("verdicts", "failure", "judge"), WAYS, ids=[way[0][7:40] for way in WAYS])
def test_nothing_of_a_batch_goes_on_before_the_safe_verdict(
    inside: Inside, verdicts: str, failure: str, judge: dict[str, Any]
) -> None:
    """The first turn asks for two calls with an effect: the barrier stands between them."""
    shown, _ = run(inside, verdicts, ABORTED, onError="Abort", **judge)

    [action] = shown["status"]["supervision"]["actions"]
    assert (action["action"], action["source"]) == ("Abort", "JudgeError")
    assert action["reason"] == f"judge unavailable ({failure})"
    assert shown["status"]["phase"] == "Aborted"
    assert (paid(shown), iterations(shown)) == (1, 1)


def test_a_judge_whose_budget_is_spent_is_not_asked_and_nothing_goes_on(inside: Inside) -> None:
    shown, asked = run(inside, f"turns: [{PASSED}]\nrepeat: Last", ABORTED, onError="Abort", tokenBudget=10)

    assert asked == 1
    assert shown["status"]["supervision"]["actions"][0]["reason"] == "judge unavailable (BudgetExceeded)"
    assert (paid(shown), iterations(shown)) == (3, 2), "the second turn was over when its verdict was due"


def test_a_verdict_that_fails_the_run_stops_the_rest_of_the_batch(inside: Inside) -> None:
    failed = """turns: [{text: '{"passed": false, "reason": "It pays too often."}'}]"""

    shown, asked = run(inside, failed, ABORTED)

    [action] = shown["status"]["supervision"]["actions"]
    assert (action["action"], action["source"], action["reason"]) == ("Abort", "Judge", "It pays too often.")
    assert (paid(shown), asked) == (1, 1)


def test_a_judge_that_fails_open_lets_the_run_go_on_and_is_counted(inside: Inside) -> None:
    shown, _ = run(inside, "turns: [{text: 'All is well.'}]\nrepeat: Last", 0, onError="Ignore")

    [record] = shown["status"]["supervision"]["supervisors"].values()
    assert shown["status"]["phase"] == "Succeeded"
    assert (paid(shown), record["judge"]["failures"]) == (3, 2)


def test_a_judge_that_is_content_is_asked_once_an_iteration(inside: Inside) -> None:
    shown, asked = run(inside, f"turns: [{PASSED}]\nrepeat: Last", 0)

    assert shown["status"]["phase"] == "Succeeded"
    assert (paid(shown), asked) == (3, 2)
    assert shown["status"]["supervision"].get("actions", []) == []
