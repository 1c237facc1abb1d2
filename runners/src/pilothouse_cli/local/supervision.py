"""Supervision of local runs: the decisions are those of a cluster, hosted by the process that advances the run.

Supervisors that were given with the manifests are kept beside the run, for its children and for `pilothouse resume`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from pilothouse_api import names
from pilothouse_api.judging import MAX_CRITERIA_CHARS, Judge, JudgeRequest
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun, Supervisor
from pilothouse_api.v1alpha1.agentrun import Snapshot, Supervision
from pilothouse_cli.authoring.manifests import Manifests
from pilothouse_cli.exits import EXIT_FAILED, EXIT_USAGE, CliError, first_problem
from pilothouse_cli.local.patches import patched
from pilothouse_cli.local.state import SUPERVISORS, RawRun, RunFolder, RunIsGone
from pilothouse_cli.runs.interventions import action_frame
from pilothouse_control.children import parent_of
from pilothouse_control.supervision import (
    Binding,
    Bindings,
    Directive,
    JudgeAsk,
    JudgeAvailability,
    JudgeAvailable,
    JudgeUnavailable,
    NewVerdict,
    SupervisionPlan,
    SupervisionView,
    find_bound,
    plan_supervision,
)
from pilothouse_control.supervisors import read_criteria
from pilothouse_control.texts import MissingText
from pilothouse_control.world import ConfigMap
from pilothouse_engine.ports import FrameSink, Secrets
from pilothouse_engine.run import Stop

if TYPE_CHECKING:
    from pilothouse_runner.judge.local import LocalJudge

T = TypeVar("T")

JUDGE_MODELS = "judge-models.yaml"
LOOK_SECONDS = 0.02
MAX_STEPS = 64
"""Most steps of one look: a finding takes three."""
NO_TABLE = f"no judge is known here: give --judge-models FILE, or write .pilothouse/{JUDGE_MODELS}"


# ---------------------------------------------------------------- what is kept beside a run


@dataclass(frozen=True, slots=True)
class KeptSupervisors:
    """The supervisors that were given with the manifests of a run, the ConfigMaps beside them, and judges' models."""

    supervisors: tuple[Supervisor, ...] = ()
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    judge_models: str | None = None

    def bind(self, run: AgentRun, plan: Plan, parent: Supervision | None = None) -> Bindings:
        """Return who watches a run."""
        return find_bound(run, [ref.name for ref in plan.spec.supervisor_refs], self.supervisors, parent)


def keep_supervisors(manifests: Manifests, judge_models: Path | None, state: Path) -> KeptSupervisors:
    """Return what is kept of manifests; raises CliError for a table of models that is none."""
    supervisors = tuple(_identified(supervisor) for supervisor in manifests.supervisors.values())
    path = judge_models or state / JUDGE_MODELS
    text = None
    if judge_models is not None or path.exists():
        text = _read_table(path)
    return KeptSupervisors(supervisors, manifests.config_maps, text)


def _identified(supervisor: Supervisor) -> Supervisor:
    """Return a Supervisor with the identity that the API server would have given it."""
    metadata = supervisor.metadata
    uid = f"local-{names.short_hash(metadata.name, 16)}"
    identity = {"uid": uid, "generation": metadata.generation or 1, "namespace": "default"}
    return supervisor.model_copy(update={"metadata": metadata.model_copy(update=identity)})


def _read_table(path: Path) -> str:
    from pilothouse_runner.judge.table import TableInvalid, load_models

    try:
        load_models(path)
    except TableInvalid as error:
        raise CliError(f"the judge's models cannot be used: {error}", "", EXIT_USAGE) from None
    return path.read_text()


def supervisors_text(kept: KeptSupervisors) -> str:
    """Return supervisors as they are kept beside a run."""
    config_maps = {name: {"data": dict(it.data), "artifact": it.artifact} for name, it in kept.config_maps.items()}
    supervisors = [supervisor.to_raw() for supervisor in kept.supervisors]
    return json.dumps({"supervisors": supervisors, "configMaps": config_maps, "judgeModels": kept.judge_models})


def read_supervisors(folder: RunFolder) -> KeptSupervisors:
    """Return the supervisors that are kept beside a run; raises CliError: nobody may go on unsupervised by mistake."""
    path = folder.path / SUPERVISORS
    try:
        raw = json.loads(path.read_text())
        return KeptSupervisors(
            tuple(Supervisor.model_validate(it) for it in raw["supervisors"]),
            {name: ConfigMap(name, it["data"], it["artifact"]) for name, it in raw["configMaps"].items()},
            raw["judgeModels"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise CliError(f"{path} cannot be read: {why}"[:500], "start a new run", EXIT_FAILED) from None


# ---------------------------------------------------------------- the host


class _Moved(Exception):
    """The run was written after it was read."""


@dataclass
class LocalSupervision:
    """Watches one run of this process."""

    folder: RunFolder
    plan: Plan
    kept: KeptSupervisors
    judge: Judge | None
    tell: Callable[[dict[str, Any]], None]
    models: frozenset[str] = frozenset()
    verdicts: dict[str, NewVerdict] = field(default_factory=dict)
    asking: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    unapplied: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    next_look: datetime | None = None

    def look(self) -> None:
        """Do all that is to be done now; raises RunIsGone, and CliError where the run cannot be read or written."""
        for _ in range(MAX_STEPS):
            if not self._step():
                return

    async def watch(self) -> None:
        """Look whenever the run was written, a verdict has come, or it is time."""
        seen: object = None
        while True:
            version = self._version()
            is_time = self.next_look is not None and datetime.now(UTC) >= self.next_look
            if version != seen or self.verdicts or is_time:
                seen = version  # of before the look: another process may write behind it
                try:
                    self.look()
                except RunIsGone:
                    return
            await asyncio.sleep(LOOK_SECONDS)

    def say_unready(self) -> None:
        """Tell which judges cannot be asked."""
        run = self.folder.read()
        for binding in self.kept.bind(run, self.plan, self._record_of_parent(run)).bound.values():
            known = self._availability(binding)
            if isinstance(known, JudgeUnavailable):
                self.tell({**_frame(binding.name), "message": f"JudgeReady=False: {known.message}"})

    async def close(self) -> None:
        """Let go of verdicts that are under way."""
        for task in self.asking.values():
            task.cancel()
        await asyncio.gather(*self.asking.values(), return_exceptions=True)

    def _version(self) -> tuple[int, int] | None:
        try:
            stat = self.folder.run_path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _step(self) -> bool:
        """Go one step; tell whether there may be another."""
        raw = self.folder.read_raw()
        run = AgentRun.model_validate(raw)
        bound = self.kept.bind(run, self.plan, self._record_of_parent(run)).bound
        raw_snapshot = run.status.run
        verdicts = dict(self.verdicts)
        plan = plan_supervision(
            SupervisionView(
                run=run,
                now=datetime.now(UTC),
                bound=bound,
                plan=self.plan,
                snapshot=Snapshot.model_validate(raw_snapshot) if raw_snapshot else None,
                judges={uid: known for uid, it in bound.items() if (known := self._availability(it)) is not None},
                verdicts=verdicts,
                underway=frozenset(self.asking),
                unapplied=self.unapplied,
                refused=self.refused,
            )
        )
        version = raw["metadata"].get("resourceVersion")
        if plan.is_changed and not self._write(version, plan):
            return True
        self.unapplied |= frozenset(plan.intended)
        self.verdicts = {uid: it for uid, it in self.verdicts.items() if verdicts.get(uid) is not it}
        self.next_look = plan.next_look
        self._say(plan)
        for ask in plan.asks:
            self.asking[ask.uid] = asyncio.create_task(self._ask(ask), name=f"judge of {ask.supervisor}")
        if plan.directive is not None:
            self._patch(version, plan.directive)
        return plan.is_changed or plan.directive is not None

    def _record_of_parent(self, run: AgentRun) -> Supervision | None:
        owner = parent_of(run)
        if owner is None:
            return None
        try:
            parent = RunFolder(self.folder.path.parent / owner[0]).read()
        except RunIsGone:
            return None
        return parent.status.supervision if parent.metadata.uid == owner[1] else None

    def _availability(self, binding: Binding) -> JudgeAvailability | None:
        judge = binding.spec.judge
        if judge is None:
            return None
        if self.judge is None:
            return JudgeUnavailable("UnknownModel", NO_TABLE)
        if judge.model not in self.models:
            return JudgeUnavailable("UnknownModel", f"judge.models has no {judge.model}")
        criteria = read_criteria(judge, self.kept.config_maps)
        if isinstance(criteria, MissingText):
            return JudgeUnavailable("CriteriaMissing", criteria.message)
        if len(criteria) > MAX_CRITERIA_CHARS:
            what = f"the criteria have {len(criteria):,} characters; the limit is {MAX_CRITERIA_CHARS:,}: shorten them"
            return JudgeUnavailable("CriteriaMissing", what)
        return JudgeAvailable(criteria)

    # ------------------------------------------------------------ acting

    def _write(self, version: str | None, plan: SupervisionPlan) -> bool:
        """Write the record; False where the run was written after it was read."""
        assert plan.record is not None
        record = plan.record.to_raw()

        def take_in(raw: RawRun) -> RawRun:
            _check(raw, version)
            return {**raw, "status": {**(raw.get("status") or {}), "supervision": record}}

        try:
            self.folder.edit(take_in)
        except _Moved:
            return False
        return True

    def _patch(self, version: str | None, directive: Directive) -> None:
        """Carry out intents on the very object that was judged."""

        def change(raw: RawRun) -> RawRun:
            _check(raw, version)
            return patched(raw, directive.patch)

        actions = frozenset(directive.actions)
        self.unapplied -= actions
        try:
            self.folder.edit(change, sync=True)
        except _Moved:
            self.unapplied |= actions
        except CliError:
            self.refused |= actions

    async def _ask(self, ask: JudgeAsk) -> None:
        assert self.judge is not None
        request = JudgeRequest(
            model=ask.model,
            criteria=ask.criteria,
            observation=ask.observation,
            timeout_seconds=ask.timeout_seconds,
        )
        answer = await self.judge.ask(request)
        self.verdicts[ask.uid] = NewVerdict(ask, answer)
        self.asking.pop(ask.uid, None)

    def _say(self, plan: SupervisionPlan) -> None:
        for action in plan.acted:
            self.tell(action_frame(action))
        for failure in plan.failures:
            self.tell({**_frame(failure.supervisor), "message": f"its judge failed: {failure.type}: {failure.message}"})
        for line in plan.log:
            self.tell({**_frame(line.supervisor), "message": line.message})


def _check(raw: RawRun, version: str | None) -> None:
    if raw["metadata"].get("resourceVersion") != version:
        raise _Moved


def _frame(supervisor: str) -> dict[str, Any]:
    return {"kind": "Supervisor", "supervisor": supervisor}


def _open_judge(kept: KeptSupervisors, secrets: Secrets) -> "LocalJudge | None":
    if kept.judge_models is None or all(supervisor.spec.judge is None for supervisor in kept.supervisors):
        return None
    from pilothouse_runner.judge.local import LocalJudge
    from pilothouse_runner.judge.table import parse_models

    return LocalJudge(parse_models(kept.judge_models), secrets)


async def advance_supervised(
    folder: RunFolder, plan: Plan, stop: Stop, sink: FrameSink, secrets: Secrets, attempt: Callable[[], Awaitable[T]]
) -> T:
    """Make an attempt of a run with its supervisors beside it: they know of it before it begins, and after it ends.

    `stop` is released where they fail: nothing goes on unsupervised.
    """
    kept = read_supervisors(folder)
    judge = _open_judge(kept, secrets)
    models = await judge.models() if judge is not None else frozenset()
    supervision = LocalSupervision(folder, plan, kept, judge, sink.emit, models)
    supervision.look()
    supervision.say_unready()
    watching = asyncio.create_task(supervision.watch(), name=f"supervisors of {folder.name}")
    watching.add_done_callback(lambda task: None if task.cancelled() else stop.release())
    try:
        end = await attempt()
        if watching.done():
            watching.result()  # a fault: without it, nobody would know why the run was not supervised
        supervision.look()
        return end
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await supervision.close()
        if judge is not None:
            await judge.aclose()
