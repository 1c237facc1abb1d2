"""Giving a directive: read the run, judge, patch `spec.control` with the version that was judged, wait for the landing.

The patch is this process's own, so who may give it was asked before (`access`); here it is only signed.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_console.orders import Planned, Refusal
from pilothouse_console.picture import Entry, Picture, RunKey
from pilothouse_console.problems import Problem, away, not_found
from pilothouse_control.directives import Answer, answer_of, snapshot_of
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    KubernetesClient,
    NotFound,
    Throttled,
)

TRIES = 8
"""How often a run is read and judged anew that changes under our hands: its runner writes once a second at most."""

Plan = Callable[[AgentRun, Snapshot], Planned | Refusal]
"""Judges a run as it is."""


@dataclass(frozen=True, slots=True)
class Given:
    """A directive that stands in the run's spec."""

    key: RunKey
    id: str
    planned: Planned
    generation: int
    uid: str


class Steering:
    """Gives directives and waits for their landings."""

    def __init__(self, client: KubernetesClient, picture: Picture) -> None:
        self._client = client
        self._picture = picture

    async def give(self, key: RunKey, plan: Plan) -> Given:
        """Write a directive; raises Problem where the run is gone, refuses it, or the API server does not answer."""
        with _errors_as_problems(key):
            meant = None
            for _ in range(TRIES):
                run = _read(await self._client.get(AGENTRUNS, key.namespace, key.name))
                meant = meant or run.metadata.uid
                if run.metadata.uid != meant:  # another run has the name by now
                    raise not_found(*key)
                try:
                    return await self._write(key, run, plan(run, read_snapshot(run)))
                except Conflict:
                    continue
        raise away(f"run {key.name} changes faster than it can be patched ({TRIES} tries)")

    async def _write(self, key: RunKey, run: AgentRun, planned: Planned | Refusal) -> Given:
        if isinstance(planned, Refusal):
            accepted = False if planned.status == 409 else None
            raise Problem(planned.status, planned.detail, planned.next, accepted=accepted)
        if planned.taken_back is not None:
            run = await self._patch(key, run, planned.taken_back)
        if not planned.is_written:
            run = await self._patch(key, run, planned.directive.patch)
        generation = run.metadata.generation or 0
        name = planned.id if planned.id not in _COUNTED else f"{planned.id}-{generation}"
        return Given(key, name, planned, generation, run.metadata.uid or "")

    async def _patch(self, key: RunKey, run: AgentRun, spec: Mapping[str, Any]) -> AgentRun:
        # Of this very object and version: what was judged is what is changed, so nothing is written to an ended run.
        metadata = {"uid": run.metadata.uid, "resourceVersion": run.metadata.resource_version}
        body = {"metadata": metadata, "spec": spec}
        raw_run = await self._client.merge_patch(AGENTRUNS, key.namespace, key.name, body)
        self._picture.apply(raw_run)
        return _read(raw_run)

    async def wait(self, given: Given, seconds: float) -> Answer:
        """Return what became of a directive; `Waiting` after so many seconds. Raises Problem where the run is gone."""
        ends = time.monotonic() + seconds
        while True:
            entry = self._picture.get(given.key)
            if entry is None or entry.uid != given.uid:
                raise not_found(*given.key)
            answer = _find_answer(entry, given)
            left = ends - time.monotonic()
            if answer is not None or left <= 0:
                return answer or Answer("Waiting")
            await self._picture.wait_for_change(given.key, entry.version, left)


_COUNTED = frozenset({"run", "pause", "finish", "abort", "limits"})
"""Directives that are told apart by the generation of the spec that they made; the others have a key of their own."""


def _find_answer(entry: Entry, given: Given) -> Answer | None:
    run = _read(entry.read())
    return answer_of(run, read_snapshot(run), given.planned.directive, given.generation)


def _read(raw_run: Mapping[str, Any]) -> AgentRun:
    try:
        return AgentRun.model_validate(raw_run)
    except ValidationError:
        what = f"run {raw_run['metadata']['name']} has what this version of the operator API does not know"
        raise Problem(503, what, "upgrade it with the CRDs") from None


def read_snapshot(run: AgentRun) -> Snapshot:
    """Return what a run says about itself; raises Problem for one that this version cannot read."""
    try:
        return snapshot_of(run)
    except ValidationError:
        what = f"run {run.metadata.name} has a status that this version of the operator API cannot read"
        raise Problem(503, what, "upgrade it with the runners") from None


@contextmanager
def _errors_as_problems(key: RunKey) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise _problem_of(key, error) from None


def _problem_of(key: RunKey, error: ApiError) -> Problem:
    match error:
        case NotFound():
            return not_found(*key)
        case Invalid():
            return Problem(422, f"the run cannot take this: {str(error)[:1000]}", "change what is wrong")
        case Forbidden():
            what = f"the cluster refuses the patch: {str(error)[:1000]}"
            return Problem(403, what, "ask whoever runs the cluster", accepted=False)
        case Throttled():
            return away("the API server has too much to do", error.retry_after)
        case _:
            return away(f"the API server does not answer ({error.status or 'no connection'}): look whether it was done")
