"""Patches of a local run's spec, with what the API server would refuse of them."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pilothouse_api.patches import merge_patch
from pilothouse_api.v1alpha1.agentrun import AgentRunSpec
from pilothouse_cli.exits import CliError, first_problem
from pilothouse_cli.local.state import RawRun

_TERMINAL_MODES = {"Finish": ("Finish", "Abort"), "Abort": ("Abort",)}


def patched(raw: RawRun, patch: Mapping[str, Any]) -> RawRun:
    """Return a run with a merge-patch of its spec; raises CliError for what the API server would refuse."""
    before = raw.get("spec") or {}
    after = merge_patch(before, patch)
    if after == before:
        return raw
    name = raw["metadata"]["name"]
    try:
        spec = AgentRunSpec.model_validate(after)
    except ValidationError as error:
        raise CliError(f"spec.{first_problem(error)}") from None
    _check_transition(name, raw, before, spec)
    _check_rules({**raw, "spec": after})
    return {**raw, "spec": after, "metadata": {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}}


def _check_transition(name: str, raw: RawRun, before: Mapping[str, Any], spec: AgentRunSpec) -> None:
    """Refuse what the CRD's transition rules refuse."""
    phase = (raw.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed", "Aborted"):
        raise CliError(f"run {name} has ended ({phase})", f"pilothouse show {name}")
    control_before = before.get("control") or {}
    mode_before = control_before.get("mode") or "Run"
    mode = (spec.control.mode if spec.control else None) or "Run"
    if mode not in _TERMINAL_MODES.get(mode_before, (mode,)):
        raise CliError(
            f"run {name} was told to {mode_before.lower()}, which cannot be taken back",
            f"pilothouse abort {name}" if mode_before == "Finish" else f"pilothouse show {name}",
        )
    for steer_id, message in (spec.control.steer if spec.control else {}).items():
        was = (control_before.get("steer") or {}).get(steer_id)
        if was is not None and was != message.to_raw():
            raise CliError(f"steer message {steer_id} cannot be changed once it is set", "use another --id")
    _check_decisions(name, raw, control_before.get("approvals") or {}, spec)


def _check_rules(raw: RawRun) -> None:
    """Refuse what the CRD's other rules refuse."""
    from pilothouse_control.validation import as_document  # a tenth of a second, for who changes something
    from pilothouse_control.validation.shape import parse

    for finding in parse(as_document(raw))[1]:
        if finding.is_error:
            raise CliError(finding.sentence)


def _check_decisions(name: str, raw: RawRun, before: Mapping[str, Any], spec: AgentRunSpec) -> None:
    """Refuse a decision that is changed, or that is on a call that does not wait for one."""
    snapshot = (raw.get("status") or {}).get("run") or {}
    pending = {approval.get("callId") for approval in snapshot.get("pendingApprovals") or ()}
    for call_id, decision in (spec.control.approvals if spec.control else {}).items():
        was = before.get(call_id)
        if was is None and call_id not in pending:
            raise CliError(f"call {call_id} of run {name} does not wait for a decision", f"pilothouse show {name}")
        if was is not None and was != decision.to_raw():
            raise CliError(f"the decision on {call_id} cannot be changed once it is set", f"pilothouse show {name}")
