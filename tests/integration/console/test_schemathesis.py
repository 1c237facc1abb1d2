"""Everything that the OpenAPI allows, and what it does not, asked by people with different rights.

No answer is a fault, each is one that the document states, and nobody is told anything of a namespace that they may not
see.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from integration.console.conftest import open_desk
from integration.console.office import Desk, Office
from support.cluster import LocalCluster

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "20"))
"""Examples of each call for each person: about a minute in all."""
SECRET = "nobody-is-told-this"
PEOPLE = ("nobody", "reader", "decider")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def served(office: Office, control_plane: LocalCluster) -> Iterator[Desk]:
    """An operator API in a thread of its own, since Schemathesis blocks while it asks."""
    opened: list[Desk] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with open_desk(office, control_plane) as desk:
            opened.append(desk)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield opened[0]
    finally:
        done.set()
        thread.join(60)


@pytest.fixture(scope="module")
def runs(office: Office) -> dict[str, list[str]]:
    """Runs that are asked about: ended ones, whose events come to an end, live ones, and one that nobody may see."""
    waiting = {"run": {"attempt": 1, "turn": 1, "pendingApprovals": [_PENDING]}}
    live = [office.run(status=waiting) for _ in range(2)]
    ended = [office.run(status={"result": {"a": 1}})]
    for name in ended:
        office.end(name)
    hidden = office.run(office.elsewhere, {"result": {"a": SECRET}, "run": {"attempt": 1, "step": SECRET}})
    office.end(hidden, office.elsewhere)
    return {"live": live, "ended": ended, "hidden": [hidden]}


_PENDING = {"callId": "t1", "tool": "refund", "requestedAt": "2026-01-01T00:00:00Z"}


def test_the_document_states_every_call(served: Desk) -> None:
    document = httpx.get(f"{served.client.base_url}/openapi.json").json()
    run = "/api/agents/runs/{namespace}/{name}"
    posts = [f"{run}/{verb}" for verb in ("abort", "approve", "finish", "limits", "pause", "resume", "steer")]
    parts = ("events", "observations", "results/{result_id}", "trace")
    gets = ["/api/agents/runs", run, *[f"{run}/{part}" for part in parts]]
    assert {path: [*calls] for path, calls in document["paths"].items()} == {
        **{path: ["get"] for path in gets},
        **{path: ["post"] for path in posts},
    }
    assert document["security"] == [{"token": []}]


@pytest.mark.timeout(300)
def test_no_question_is_a_fault_and_nobody_is_told_of_what_they_may_not_see(
    served: Desk, runs: dict[str, list[str]]
) -> None:
    asked: Counter[int] = Counter()
    schema = schemathesis.openapi.from_url(f"{served.client.base_url}/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()
        strategy = st.one_of(
            operation.as_strategy(GenerationMode.POSITIVE), operation.as_strategy(GenerationMode.NEGATIVE)
        )
        places = st.sampled_from(_places(operation.path, served.office, runs))
        for who in PEOPLE:
            _ask_about(strategy, places, Person(served, who, asked))
    # Each kind of answer was met, so not all questions were refused at the door.
    assert {200, 202, 403, 404, 409, 422} <= asked.keys(), asked
    assert not [status for status in asked if status >= 500], asked


@dataclass
class Person:
    """Asks, and looks at every answer."""

    desk: Desk
    who: str
    asked: Counter[int]

    def ask(self, case: Case, place: tuple[str, str] | None) -> None:
        is_aimed = place is not None and bool(case.path_parameters)
        if place is not None and is_aimed:
            case.path_parameters = {**case.path_parameters, "namespace": place[0], "name": place[1]}
        if isinstance(case.query, dict) and isinstance(case.query.get("wait"), (int, float)):
            case.query["wait"] = min(case.query["wait"], 0.01)  # nobody lets these directives land
        answer = case.call(headers=self.desk.headers(self.who), timeout=90)
        self.asked[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)
        assert SECRET not in answer.text
        if place is not None and is_aimed and place[0] == self.desk.office.elsewhere:
            assert answer.status_code in (401, 404, 405, 413, 422), answer.text


def _ask_about(
    strategy: st.SearchStrategy[Case], places: st.SearchStrategy[tuple[str, str] | None], person: Person
) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy, place=places)
    def examine(case: Case, place: tuple[str, str] | None) -> None:
        person.ask(case, place)

    examine()


def _places(path: str, office: Office, runs: dict[str, list[str]]) -> list[tuple[str, str] | None]:
    """Return what most questions are about, since names that are made up are all answered alike."""
    hidden = (office.elsewhere, runs["hidden"][0])
    ended = [(office.namespace, name) for name in runs["ended"]]
    if path.endswith("/events"):  # those of a live run have no end
        return [hidden, *ended]
    live = [(office.namespace, name) for name in runs["live"]]
    return [None, hidden, *ended, *live, (office.namespace, "no-such-run")]
