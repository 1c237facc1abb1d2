"""A run of an Agent alone, as a workflow of one step."""

import re

from pilothouse_api import names
from pilothouse_api.signals import END
from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.common import LocalRef
from pilothouse_api.v1alpha1.workflow import Step, WorkflowSpec

MAX_STEP_ID = 63


def workflow_of_agent(name: str, spec: AgentSpec) -> WorkflowSpec:
    """Return the workflow of a run of an Agent alone: one step, every outcome of which finishes the run."""
    routes = dict.fromkeys(spec.outcome.enum or (), END)
    step = Step(id=step_id_of(name), kind="Agent", agent_ref=LocalRef(name=name), routes=routes)
    return WorkflowSpec(steps=[step])


def step_id_of(agent: str) -> str:
    """Return a legal step id for the name of an Agent."""
    step_id = re.sub(r"[^-a-z0-9_]+", "-", agent.lower()).strip("-_")
    if not step_id or not step_id[0].isalpha() or step_id in ("end", "default"):
        step_id = f"agent-{step_id}".rstrip("-")
    return names.fit(step_id, MAX_STEP_ID)
