"""Which keys an object concerns: its own, its owner's, and those of what refers to it."""

from collections.abc import Iterator, Mapping
from typing import Any

from pilothouse_api import names
from pilothouse_operator.watching.cache import Cache, Key, key_of, parent_key, workflow_of
from pilothouse_operator.watching.sessions import waiting_for

SOON = 0.0
SETTLED = 1.0
"""Seconds until summaries (counts, usedBy) are renewed: more of the same usually follows."""
COUNTED = 3.0
"""Seconds until a Supervisor's counters are written: one write for each action would not scale."""

Wish = tuple[Key, float]


def route(raw_object: Mapping[str, Any], cache: Cache) -> Iterator[Wish]:
    """Yield the keys to look at because of an object, with a delay in seconds."""
    key = key_of(raw_object)
    if key.kind == "Pod":
        run = raw_object["metadata"].get("labels", {}).get(names.LABEL_RUN)
        if run:
            yield Key("AgentRun", key.namespace, run), SOON
        return
    if key.kind == "AgentRun":
        yield key, SOON
        parent = parent_key(raw_object)
        if parent is not None:
            yield parent, SOON
        workflow = workflow_of(raw_object)
        if workflow is not None:
            yield workflow, SETTLED
        for waiting in waiting_for(raw_object, cache):
            yield waiting, SOON
        return
    if key.kind == "Supervisor":
        yield from _watched(raw_object, key, cache)
    if key.kind != "ConfigMap":
        yield key, SOON
    yield from _dependents(key, cache)


def _watched(raw_supervisor: Mapping[str, Any], key: Key, cache: Cache) -> Iterator[Wish]:
    """Yield the runs that a supervisor watches, or may watch from now on: what it selects is decided there.

    One that was made anew takes the place of the one that had its name, of which a run holds a copy.
    """
    uid, selects = raw_supervisor["metadata"].get("uid", ""), "selector" in raw_supervisor.get("spec", {})
    for run in cache.keys("AgentRun", key.namespace):
        status = (cache.get(run) or {}).get("status", {})
        if "plan" not in status:
            continue
        records = (status.get("supervision") or {}).get("supervisors", {})
        if selects or uid in records or any(record.get("name") == key.name for record in records.values()):
            yield run, SOON


def _dependents(key: Key, cache: Cache) -> Iterator[Wish]:
    for kind in ("Workflow",) if key.kind == "Supervisor" else ("Workflow", "Agent"):
        for other in cache.keys(kind, key.namespace):
            if other != key:
                yield other, SETTLED
    for run in cache.keys("AgentRun", key.namespace):
        raw = cache.get(run)
        if raw is not None and "plan" not in raw.get("status", {}):
            yield run, SOON
