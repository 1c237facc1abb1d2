"""The table of all checks, in the order in which they speak."""

from collections.abc import Sequence
from typing import Any

from pilothouse_control.validation.agents import AGENT_CHECKS
from pilothouse_control.validation.children import (
    CHILD_AGENT_CHECKS,
    CHILD_SPEC_CHECKS,
    CHILD_WORKFLOW_CHECKS,
)
from pilothouse_control.validation.context import CONTEXT_CHECKS
from pilothouse_control.validation.graph import GRAPH_CHECKS
from pilothouse_control.validation.guardrails import GUARDRAIL_CHECKS
from pilothouse_control.validation.hooks import HOOK_ARTIFACT, HOOK_CHECKS
from pilothouse_control.validation.mcp import MCP_AGENT_CHECKS, MCP_SPEC_CHECKS
from pilothouse_control.validation.pods import POD_CHECKS
from pilothouse_control.validation.resources import RESOURCE_CHECKS, RESOURCE_TOOL_CHECKS
from pilothouse_control.validation.runs import RUN_CHECKS
from pilothouse_control.validation.scene import Check
from pilothouse_control.validation.specs import SPEC_CHECKS
from pilothouse_control.validation.supervisors import SUPERVISOR_CHECKS, SUPERVISOR_REF_CHECKS
from pilothouse_control.validation.workflows import WORKFLOW_CHECKS

CHECKS_OF_SPECS = (
    *SPEC_CHECKS,
    *MCP_SPEC_CHECKS,
    *GUARDRAIL_CHECKS,
    *RESOURCE_CHECKS,
    *CHILD_SPEC_CHECKS,
    HOOK_ARTIFACT,
)
CHECKS_OF_AGENTS = (*AGENT_CHECKS, *MCP_AGENT_CHECKS, *CHILD_AGENT_CHECKS)
CHECKS_OF_WORKFLOWS = (
    *WORKFLOW_CHECKS,
    *GRAPH_CHECKS,
    *CONTEXT_CHECKS,
    *HOOK_CHECKS,
    *POD_CHECKS,
    *RESOURCE_TOOL_CHECKS,
    *CHILD_WORKFLOW_CHECKS,
    *SUPERVISOR_REF_CHECKS,
)
CHECKS_OF_RUNS = RUN_CHECKS
CHECKS_OF_SUPERVISORS = SUPERVISOR_CHECKS

CHECKS: Sequence[Check[Any]] = (
    *CHECKS_OF_SPECS,
    *CHECKS_OF_AGENTS,
    *CHECKS_OF_WORKFLOWS,
    *CHECKS_OF_RUNS,
    *CHECKS_OF_SUPERVISORS,
)
