"""The table of reconcilers, by the kind of key."""

from typing import Protocol

from pilothouse_operator.reconcile.agents import AgentReconciler
from pilothouse_operator.reconcile.desk import Desk, Pace
from pilothouse_operator.reconcile.finished import FinishedReconciler
from pilothouse_operator.reconcile.runs import RunReconciler
from pilothouse_operator.reconcile.supervisors import SupervisorReconciler
from pilothouse_operator.reconcile.suspension import Suspensions
from pilothouse_operator.reconcile.workflows import WorkflowReconciler
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.watching.finished import FINISHED


class Reconciler(Protocol):
    """Looks at one key."""

    async def reconcile(self, key: Key) -> float | None:
        """Return after how many seconds to look again; None: when something happens."""
        ...


def build_reconcilers(desk: Desk) -> dict[str, Reconciler]:
    """Return the reconciler of each kind."""
    pace = Pace(desk.settings.deletes_per_second)
    suspensions = Suspensions(desk)
    return {
        "AgentRun": RunReconciler(desk, suspensions),
        "Workflow": WorkflowReconciler(desk, pace, suspensions),
        "Agent": AgentReconciler(desk),
        "Supervisor": SupervisorReconciler(desk),
        FINISHED: FinishedReconciler(desk, pace),
    }
