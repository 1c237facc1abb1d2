"""Supervisors: accepted by the API server, and refused in status until supervision works."""

from pilothouse_api.v1alpha1.supervisor import SupervisorStatus
from pilothouse_kubernetes.client import SUPERVISORS
from pilothouse_operator.cache import Key
from pilothouse_operator.conditions import Draft, merge_conditions
from pilothouse_operator.desk import Desk
from pilothouse_operator.reconcile.writing import write_status

AT_ONCE = 0.0
REASON = "NotSupportedYet"
MESSAGE = "supervision is not supported yet: this Supervisor watches nothing; remove it, and supervisorRefs to it"


class SupervisorReconciler:
    """Reconciles Supervisors."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def reconcile(self, key: Key) -> float | None:
        """Say that it does nothing."""
        raw = self._desk.cache.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return None
        old = SupervisorStatus.model_validate(raw.get("status", {}))
        drafts = [
            Draft("Ready", "False", REASON, MESSAGE),
            Draft("Reconciling", "False", REASON, MESSAGE),
            Draft("Stalled", "True", REASON, MESSAGE),
        ]
        generation = raw["metadata"].get("generation", 0)
        conditions = merge_conditions(old.conditions, drafts, generation, self._desk.now())
        status = {
            "observedGeneration": generation,
            "conditions": [condition.to_raw() for condition in conditions],
        }
        written = await write_status(self._desk, SUPERVISORS, key, raw, raw.get("status", {}), status)
        return AT_ONCE if written is None else None
