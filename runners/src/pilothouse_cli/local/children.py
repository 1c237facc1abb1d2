"""Children of local runs: hosted by the process that advances their parent, each with a folder of its own.

What is done about them is decided by the same pure function as in a cluster (`plan_children`); here it is asked
whenever an object of the family changes. A child's own children are hosted in the same way.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pilothouse_api.patches import merge_patch
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import Agent, AgentRun, Workflow
from pilothouse_api.v1alpha1.agentrun import ChildReport, Snapshot
from pilothouse_api.wake import wake_due
from pilothouse_cli.exits import CliError
from pilothouse_cli.local.creation import create_run, load_plan, next_attempt, timestamp
from pilothouse_cli.local.state import SUPERVISORS, RawRun, RunFolder, RunIsGone, RunIsLive, find_folder
from pilothouse_cli.terminal import say
from pilothouse_control.children import (
    ChildPatch,
    Family,
    NewChild,
    calls_of,
    child_name,
    ended_calls,
    past_tasks,
    plan_children,
    read_snapshot,
    refusal_report,
)
from pilothouse_control.directives import is_finished
from pilothouse_control.lineage import lineage_of
from pilothouse_control.resolution import NotResolved, resolve_plan
from pilothouse_control.world import ConfigMap, Platform, References
from pilothouse_engine.attempt import Attempt, AttemptEnd, Finished, Released, SettleCause, Stop

Once = Callable[[RunFolder, Plan, Attempt, Stop], Awaitable[AttemptEnd]]
"""Makes one attempt of a run."""

MANIFESTS = "manifests.json"
"""File of a run's folder with the objects that its children are made from."""

LOOK_SECONDS = 0.1
ABORT_GRACE_SECONDS = 30.0
AWAITING_CHILD = "AwaitingChild"
MAX_ATTEMPTS: SettleCause = "MaxAttempts"


def manifests_text(known: References) -> str:
    """Return what children may be made from, to be kept beside a run."""
    config_maps = {name: {"data": dict(it.data), "artifact": it.artifact} for name, it in known.config_maps.items()}
    objects = {"workflows": known.workflows, "agents": known.agents}
    raw: dict[str, Any] = {kind: {name: it.to_raw() for name, it in found.items()} for kind, found in objects.items()}
    return json.dumps({**raw, "configMaps": config_maps})


def read_manifests(folder: RunFolder, platform: Platform) -> References:
    """Return what children of a run may be made from; nothing where it was not kept or is damaged."""
    try:
        raw = json.loads((folder.path / MANIFESTS).read_text())
        return References(
            {name: Workflow.model_validate(it) for name, it in raw["workflows"].items()},
            {name: Agent.model_validate(it) for name, it in raw["agents"].items()},
            {name: ConfigMap(name, it["data"], it["artifact"]) for name, it in raw["configMaps"].items()},
            platform=platform,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return References(platform=platform)


@dataclass
class LocalFamily:
    """A run and its children, advanced in this process."""

    state: Path
    platform: Platform
    once: Once
    stop: Stop
    hosted: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    known: dict[str, References] = field(default_factory=dict)
    since: dict[tuple[str, str], datetime] = field(default_factory=dict)
    handed_on: set[str] = field(default_factory=set)
    """Tasks that outlive the run of this process: let go of at its end, and hosted by the session's next run."""

    async def advance(self, folder: RunFolder, plan: Plan, attempt: Attempt) -> AttemptEnd:
        """Advance a run as far as it goes here, with its children; they have ended or are let go when this returns."""
        tending = asyncio.create_task(self._tend_always(folder), name="children")
        tending.add_done_callback(lambda task: None if task.cancelled() else self.stop.release())
        try:
            while True:
                end = await self.once(folder, plan, attempt, self.stop)
                if not self._waits_for_child(end) or not await self._wait_due(folder):
                    break
                attempt = Attempt(next_attempt(folder))
            if tending.done():
                tending.result()  # a fault: without it, nobody would know why all was let go of
            await self._part(folder, end)
            return end
        finally:
            tending.cancel()
            for task in self.hosted.values():
                task.cancel()
            await asyncio.gather(tending, *self.hosted.values(), return_exceptions=True)

    def _waits_for_child(self, end: AttemptEnd) -> bool:
        return isinstance(end, Released) and end.parked.reason == AWAITING_CHILD and not self.stop.is_asked

    async def _part(self, folder: RunFolder, end: AttemptEnd) -> None:
        """Wait for the children: those of a run that has ended are aborted, those of one that is let go are too."""
        if isinstance(end, Finished):
            self._tend(folder)
            held = [task for name, task in self.hosted.items() if name not in self.handed_on]
            if held:
                await asyncio.wait(held, timeout=ABORT_GRACE_SECONDS)
        self.stop.release()
        if self.hosted:
            await asyncio.wait(self.hosted.values(), timeout=ABORT_GRACE_SECONDS)
        self._tend(folder)

    # ------------------------------------------------------------ looking

    async def _tend_always(self, root: RunFolder) -> None:
        """Look after the family whenever one of its objects was written, and while something is waited for."""
        seen: object = None
        while True:
            family = [RunFolder(root.path.parent / name) for name in (root.name, *self.hosted)]
            versions = [_version(folder) for folder in family]
            if versions != seen or self.since:
                for folder in family:
                    self._tend(folder)
            seen = versions
            await asyncio.sleep(LOOK_SECONDS)

    def _tend(self, folder: RunFolder) -> None:
        """Do what is to be done about the children of one run."""
        try:
            parent = folder.read()
            snapshot = read_snapshot(parent)
            if snapshot is None or not (snapshot.children or parent.status.children):
                return
            self._settle(folder, parent, snapshot)
        except (RunIsGone, CliError) as error:  # whoever advances the run finds out by itself
            if isinstance(error, CliError):
                say(f"the children of run {folder.name} cannot be looked after: {error.message}")

    def _settle(self, folder: RunFolder, parent: AgentRun, snapshot: Snapshot) -> None:
        known, calls, past = self._known_of(folder), calls_of(parent, snapshot), past_tasks(snapshot)
        mode = parent.spec.control.mode if parent.spec.control is not None else None
        family = Family(
            parent=parent,
            snapshot=snapshot,
            plan=self._plan_of(folder),
            is_ending=snapshot.exit is not None or mode == "Abort",
            now=datetime.now(UTC),
            found={call: self._find(call if call in past else child_name(parent, call)) for call in calls},
            owners={name: self._find(name) for name in set(past.values())},
            targets=frozenset([*(("Agent", it) for it in known.agents), *(("Workflow", it) for it in known.workflows)]),
            since={call: self.since[folder.name, call] for call in calls if (folder.name, call) in self.since},
        )
        plan = plan_children(family)
        for call in calls:
            if call in plan.waiting:
                self.since.setdefault((folder.name, call), family.now)
            else:
                self.since.pop((folder.name, call), None)
        refused = {new.call_id: self._make(folder, family, new, known) for new in plan.creates}
        for patch in plan.patches:
            self._tell(patch)
        reports = [refused.get(report.call_id) or report for report in plan.reports]
        _write_reports(folder, parent, reports)
        self.handed_on |= set(plan.handed_on)
        for name in (*plan.open, *plan.handed_on):
            self._host(name)

    def _find(self, name: str) -> AgentRun | None:
        folder = find_folder(self.state, name)
        try:
            return folder.read() if folder is not None else None
        except RunIsGone:
            return None

    def _known_of(self, folder: RunFolder) -> References:
        if folder.name not in self.known:
            self.known[folder.name] = read_manifests(folder, self.platform)
        return self.known[folder.name]

    def _plan_of(self, folder: RunFolder) -> Plan:
        if folder.name not in self.plans:
            self.plans[folder.name] = load_plan(folder)
        return self.plans[folder.name]

    # ------------------------------------------------------------ acting

    def _make(self, folder: RunFolder, family: Family, new: NewChild, known: References) -> ChildReport | None:
        """Keep a new child; return its end where it cannot be planned."""
        request = next(request for request in family.snapshot.children if request.call_id == new.call_id)
        identity = {"uid": str(uuid.uuid4()), "generation": 1, "resourceVersion": "1", "creationTimestamp": timestamp()}
        run = AgentRun.model_validate({**new.raw, "metadata": {**new.raw["metadata"], **identity}})
        plan = resolve_plan(run, known, lineage_of(self._plan_of(folder), request))
        if isinstance(plan, NotResolved):
            return refusal_report(new.call_id, plan.reason, plan.message)
        others = {MANIFESTS: manifests_text(known)}
        if (folder.path / SUPERVISORS).exists():
            from pilothouse_cli.local.supervision import read_supervisors, supervisors_text

            kept = read_supervisors(folder)
            problem = kept.bind(run, plan, family.parent.status.supervision).problem
            if problem is not None:
                return refusal_report(new.call_id, *problem)
            others[SUPERVISORS] = supervisors_text(kept)
        create_run(run, plan, self.state, others)
        return None

    def _tell(self, patch: ChildPatch) -> None:
        folder = find_folder(self.state, patch.name)

        def change(raw: RawRun) -> RawRun:
            if raw["metadata"].get("uid") != patch.raw["metadata"]["uid"]:
                return raw
            changed: RawRun = merge_patch(raw, patch.raw)
            changed["metadata"]["generation"] = int(raw["metadata"]["generation"]) + 1
            return changed

        if folder is not None:
            folder.edit(change)

    def _host(self, name: str) -> None:
        task = self.hosted.get(name)
        folder = find_folder(self.state, name)
        if folder is None or self.stop.is_asked or (task is not None and not task.done()):
            return
        if task is not None and task.done() and folder.is_live():
            return
        self.hosted[name] = asyncio.create_task(self._advance_child(folder), name=f"child {name}")

    async def _advance_child(self, folder: RunFolder) -> None:
        """Advance a child until it has ended or is let go; an attempt that crashes is made again."""
        try:
            with folder.hold():
                plan = self._plan_of(folder)
                while not self.stop.is_asked and not is_finished(folder.read()):
                    if not await self._attempt_child(folder, plan):
                        return
        except (RunIsGone, RunIsLive):
            return  # another process has it
        except CliError as error:
            say(f"the child {folder.name} cannot go on: {error.message}")

    async def _attempt_child(self, folder: RunFolder, plan: Plan) -> bool:
        """Make one attempt; tell whether another one is due."""
        crashes = int(((folder.read_raw().get("status") or {}).get("attempts") or {}).get("crashes") or 0)
        is_over = crashes >= plan.max_attempts
        attempt = Attempt(next_attempt(folder), settle=MAX_ATTEMPTS if is_over else None)
        try:
            end = await self.once(folder, plan, attempt, self.stop)
        except Exception as fault:
            why = f"{type(fault).__name__}: {fault}"
            # What ends a pod in a cluster must not end the parent here: it is counted, shown, and tried again.
            say(f"the child {folder.name} crashed in attempt {attempt.number}: {why}")
            folder.edit(lambda raw: _crashed(raw, crashes + 1, why))
            if is_over:
                folder.edit(_given_up)
            return not is_over
        return isinstance(end, Released) and await self._wait_due(folder)

    async def _wait_due(self, folder: RunFolder) -> bool:
        """Wait until a run that was let go is to go on; False where this process is asked to let go of all."""
        while not self.stop.is_asked:
            run = folder.read()
            snapshot = read_snapshot(run)
            ended = ended_calls(run.status.children)
            if snapshot is None or wake_due(snapshot, run.spec.control, datetime.now(UTC), ended):
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False


def _version(folder: RunFolder) -> tuple[int, int] | None:
    try:
        stat = folder.run_path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _write_reports(folder: RunFolder, parent: AgentRun, reports: list[ChildReport]) -> None:
    raw_reports = [report.to_raw() for report in reports]
    if raw_reports == [report.to_raw() for report in parent.status.children]:
        return

    def take_in(raw: RawRun) -> RawRun:
        if raw["metadata"].get("uid") != parent.metadata.uid:
            return raw
        return {**raw, "status": {**(raw.get("status") or {}), "children": raw_reports}}

    folder.edit(take_in)


def _crashed(raw: RawRun, crashes: int, why: str) -> RawRun:
    attempts = {"crashes": crashes, "lastFailure": why[:1024]}
    return {**raw, "status": {**(raw.get("status") or {}), "attempts": attempts}}


def _given_up(raw: RawRun) -> RawRun:
    """End a run whose settling attempt crashed too: what its last calls did nobody knows."""
    status, now = raw.get("status") or {}, timestamp()
    message = f"every attempt crashed; the last one: {(status.get('attempts') or {}).get('lastFailure')}"
    states = {"Finished": "True", "Failed": "True", "EffectsSettled": "Unknown"}
    conditions = [
        {"type": kind, "status": it, "reason": MAX_ATTEMPTS, "message": message, "lastTransitionTime": now}
        for kind, it in states.items()
    ]
    end = {"signal": "error", "reason": MAX_ATTEMPTS, "message": message}
    return {
        **raw,
        "status": {**status, "phase": "Failed", "conditions": conditions, "exit": end, "completionTime": now},
    }
