"""A local run before a process advances it: its object, its name, its plan, and the number of each attempt."""

import secrets as randomness
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.exits import EXIT_FAILED, EXIT_USAGE, CliError
from pilothouse_cli.local.sessions import check_session_free, hold_sessions
from pilothouse_cli.local.state import RawRun, RunFolder, make_folder
from pilothouse_control.world import Platform

NAMESPACE = "default"
LOCAL_PLATFORM = Platform(runner_image="local", durable_journal=True)


def new_run(template: AgentRun, name: str, workflow: str) -> AgentRun:
    """Return a run as the API server would have stored it; `template` brings spec and labels."""
    metadata = template.metadata.model_copy(
        update={
            "name": name,
            "namespace": NAMESPACE,
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "resource_version": "1",
            "creation_timestamp": timestamp(),
            "labels": {**template.metadata.labels, names.LABEL_WORKFLOW: workflow},
        }
    )
    return template.model_copy(update={"metadata": metadata})


def new_name(workflow: str) -> str:
    """Return a name that no other run has."""
    return names.fit(f"{workflow}-{randomness.token_hex(3)}", names.MAX_RUN_NAME)


def check_name(name: str) -> str:
    """Return a name that a person chose for a run; raises CliError where the cluster would refuse it."""
    if not names.is_dns_label(name) or len(name) > names.MAX_RUN_NAME:
        what = f"lower-case letters, digits and -, {names.MAX_RUN_NAME} characters at most"
        raise CliError(f"{name!r:.80} is no name for a run", f"use {what}", EXIT_USAGE)
    return name


def create_run(run: AgentRun, plan: Plan, state: Path, others: Mapping[str, str] | None = None) -> RunFolder:
    """Keep a new run: its object, its plan, other files by name, and its place for a journal."""
    text = plan.encode()
    raw: RawRun = {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": run.metadata.to_raw(),
        "spec": run.spec.to_raw(),
        "status": {
            "phase": "Pending",
            "attempt": 0,
            "startTime": timestamp(),
            "plan": {"name": names.PLAN_KEY, "digest": text_digest(text)},
        },
    }
    texts = {names.PLAN_KEY: text, **(others or {})}
    if run.spec.session is None:
        return make_folder(state, raw, texts)
    with hold_sessions(state):
        check_session_free(run.spec.session, state)
        return make_folder(state, raw, texts)


def next_attempt(folder: RunFolder) -> int:
    """Return the number of the next attempt of a run, which is its fence from now on."""

    def count(raw: RawRun) -> RawRun:
        status = raw.get("status") or {}
        attempt = int(status.get("attempt") or 0) + 1
        return {**raw, "status": {**status, "attempt": attempt}}

    return int(folder.edit(count)["status"]["attempt"])


def load_plan(folder: RunFolder) -> Plan:
    """Return the plan of a run, which must have the digest that its status says; raises CliError."""
    digest = ((folder.read_raw().get("status") or {}).get("plan") or {}).get("digest")
    try:
        return Plan.decode(folder.plan_path.read_text(), digest)
    except OSError as error:
        raise CliError(f"{folder.plan_path} cannot be read: {error.strerror}", "", EXIT_FAILED) from None
    except ValueError as error:
        raise CliError(
            f"{folder.plan_path} cannot be used: {str(error)[:300]}", "start a new run", EXIT_FAILED
        ) from None


def timestamp() -> str:
    """Return the wall time, RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
