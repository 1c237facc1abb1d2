"""Plans as they are stored: made once for a run, read again from their ConfigMap, never made twice.

A second try after a crash finds the stored plan and uses it, whatever the workflow says by now.
"""

from collections import OrderedDict
from dataclasses import dataclass

from pydantic import ValidationError

from pilothouse_api.digests import text_digest
from pilothouse_api.names import PLAN_KEY, plan_name
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1.agentrun import PlanReport
from pilothouse_kubernetes.client import CONFIGMAPS, AlreadyExists, KubernetesClient, NotFound, Raw
from pilothouse_operator.workloads.manifests import build_plan_configmap

REMEMBERED_PLANS = 8192
"""More than one operator has live runs: with fewer, each look at a run in turn would fetch and parse its plan anew."""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan with what status says about it; without texts and input, which only its runner needs."""

    plan: Plan
    report: PlanReport


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why a stored plan cannot be used. `is_waiting`: it will go away by itself."""

    reason: str
    message: str
    is_waiting: bool = False


class PlanStore:
    """Plans by the uid of their run; the newest are remembered, and what is alike in them is kept once."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._remembered: OrderedDict[str, StoredPlan] = OrderedDict()
        self._newest: OrderedDict[tuple[str, str], Plan] = OrderedDict()
        """The plan that was remembered last, by namespace and workflow."""

    async def store(self, plan: Plan) -> StoredPlan | NoPlan:
        """Store the plan of a run, or return the one that is stored already."""
        body = build_plan_configmap(plan)
        try:
            await self._client.create(CONFIGMAPS, plan.run.namespace, body)
        except AlreadyExists:
            return await self._read(plan.run.namespace, plan.run.name, plan.run.uid, None)
        text = body["data"][PLAN_KEY]
        report = PlanReport(name=body["metadata"]["name"], digest=text_digest(text))
        return self._remember(plan.run.uid, StoredPlan(plan, report))

    async def load(self, namespace: str, run: str, uid: str, report: PlanReport) -> StoredPlan | NoPlan:
        """Return the plan that status names."""
        known = self._remembered.get(uid)
        if known is not None and known.report.digest == report.digest:
            self._remembered.move_to_end(uid)
            return known
        return await self._read(namespace, run, uid, report.digest)

    def forget(self, uid: str) -> None:
        """Forget the plan of a run that has ended."""
        self._remembered.pop(uid, None)

    async def _read(self, namespace: str, run: str, uid: str, want_digest: str | None) -> StoredPlan | NoPlan:
        name = plan_name(run)
        try:
            raw = await self._client.get(CONFIGMAPS, namespace, name)
        except NotFound:
            return NoPlan("PlanLost", f"ConfigMap {name}, which holds the plan, is gone: make another run")
        if not _is_owned_by(raw, uid):
            return NoPlan("PlanNameTaken", f"ConfigMap {name} belongs to another object: delete it", is_waiting=True)
        text = str(raw.get("data", {}).get(PLAN_KEY, ""))
        try:
            plan = Plan.decode(text, want_digest)
        except (ValueError, ValidationError) as error:
            return NoPlan("PlanUnreadable", f"ConfigMap {name}: {str(error)[:300]}; make another run")
        return self._remember(uid, StoredPlan(plan, PlanReport(name=name, digest=text_digest(text))))

    def _remember(self, uid: str, stored: StoredPlan) -> StoredPlan:
        key = (stored.plan.run.namespace, stored.plan.workflow.name)
        plan = lighten(stored.plan, self._newest.get(key))
        lightened = self._remembered[uid] = StoredPlan(plan, stored.report)
        self._newest[key] = plan
        self._newest.move_to_end(key)
        for kept in (self._remembered, self._newest):
            if len(kept) > REMEMBERED_PLANS:
                kept.popitem(last=False)
        return lightened


def lighten(plan: Plan, other: Plan | None) -> Plan:
    """Return a plan without its texts and its input, and with those parts of another one that are the same.

    A thousand runs of one workflow differ in little else than their names.
    """
    parts = {name: getattr(plan, name) for name in _ALIKE}
    if other is not None:
        known = {name: getattr(other, name) for name in _ALIKE}
        parts = {name: known[name] if known[name] == part else part for name, part in parts.items()}
    return plan.model_copy(update={"texts": {}, "input": {}, **parts})


_ALIKE = ("spec", "agents", "ceilings", "ancestor_policies", "pod", "workflow")


def _is_owned_by(raw: Raw, uid: str) -> bool:
    return any(reference.get("uid") == uid for reference in raw["metadata"].get("ownerReferences", ()))
