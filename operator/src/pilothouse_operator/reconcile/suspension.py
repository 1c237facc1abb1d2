"""Namespaces in which no run begins: an annotation of theirs says so (`names.ANNOTATION_SUSPEND`).

It is read when something is about to begin, and not watched: an operator of one namespace may read that one and watch
none, and so both kinds of installation do the same. What has begun is never held back: further attempts of a run, the
wake-up of one that waits without a pod, and the children of a live one.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from pilothouse_api import names
from pilothouse_kubernetes.client import NAMESPACES, Forbidden, NotFound
from pilothouse_operator.reconcile.desk import Desk

FRESH = timedelta(seconds=1)
"""How long one answer serves: five hundred runs that begin at once ask once."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Answer:
    is_suspended: bool
    at: datetime


class Suspensions:
    """Knows which namespaces are suspended, as far as somebody has asked lately."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._answers: dict[str, _Answer] = {}
        self._is_blind = False

    async def is_suspended(self, namespace: str) -> bool:
        """Tell whether no run may begin in a namespace; raises ApiError where that cannot be known now."""
        known, now = self._answers.get(namespace), self._desk.now()
        if known is not None and now - known.at < FRESH:
            return known.is_suspended
        found = await self._ask(namespace)
        was = known is not None and known.is_suspended
        self._answers[namespace] = _Answer(found, now)
        if found != was:
            log.info("namespace.suspended" if found else "namespace.resumed", namespace=namespace)
        if was and not found:
            self._wake(namespace)
        return found

    async def _ask(self, namespace: str) -> bool:
        try:
            raw = await self._desk.client.get(NAMESPACES, None, namespace)
        except NotFound:
            return False
        except Forbidden as error:
            if not self._is_blind:
                log.warning("namespace.unreadable", namespace=namespace, error=str(error), effect="suspends nothing")
            self._is_blind = True
            return False
        return (raw["metadata"].get("annotations") or {}).get(names.ANNOTATION_SUSPEND) == "true"

    def _wake(self, namespace: str) -> None:
        """Have everybody look who may wait: one of them has found out."""
        for kind in ("Workflow", "AgentRun"):
            for key in self._desk.cache.keys(kind, namespace):
                self._desk.queue.add(key)
