"""Where the result of a run is, and what is printed of it."""

import pytest

from pilothouse_api.digests import text_digest
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.cluster.runs import ClusterRuns
from pilothouse_cli.exits import CliError
from pilothouse_cli.runs.results import Reference, result_of_journal, stored_result
from pilothouse_engine.results import compact

RESULT = {"answer": "long"}
REFERENCE = Reference(17, text_digest(compact(RESULT)))
ENTRIES = [{"fact": "StepFinished"}, {"fact": "RunEnded", "result": RESULT}]


def run_with(**status: object) -> AgentRun:
    return AgentRun.model_validate(
        {
            "metadata": {"name": "r1", "namespace": "team-a", "uid": "u-1"},
            "spec": {"workflowRef": {"name": "w"}},
            "status": status,
        }
    )


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, None),
        ({"result": {"answer": 1}}, {"answer": 1}),
        ({"run": {"attempt": 1, "result": {"answer": 1}}}, {"answer": 1}),
        ({"result": {"ref": "journal/result", "bytes": 17, "digest": REFERENCE.digest}}, REFERENCE),
        ({"result": {"ref": "an author's own"}}, {"ref": "an author's own"}),
    ],
)
def test_a_status_holds_a_result_or_refers_to_one(status: dict[str, object], want: object) -> None:
    assert stored_result(run_with(**status)) == want


def test_the_result_that_is_referred_to_is_found_by_its_digest() -> None:
    assert result_of_journal(ENTRIES, REFERENCE, "the journal of r1") == RESULT
    with pytest.raises(CliError, match="the journal of r1 does not hold the result with the digest 0"):
        result_of_journal(ENTRIES, Reference(17, "0"), "the journal of r1")


def test_the_journal_of_a_run_on_a_cluster_is_said_where_it_is() -> None:
    with pytest.raises(CliError, match="in Redis it is the stream ns:team-a:run:u-1:journal"):
        ClusterRuns("team-a", None).entries(run_with())
