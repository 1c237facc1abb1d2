"""An operator as a process of the model: the real `RunReconciler` over the real `Cache`, stepped at its requests."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import pilothouse_control.validation  # noqa: F401  resolution and validation name each other; this order loads
from model.stepping import Ask, Ended, Raises, resume
from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1.agentrun import PlanReport
from pilothouse_engine.testing.clock import START
from pilothouse_kubernetes.client import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from pilothouse_operator.reconcile import runs as runs_module
from pilothouse_operator.reconcile.run_memories import Memory
from pilothouse_operator.reconcile.runs import RunReconciler
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.workloads.manifests import PodSettings
from pilothouse_operator.workloads.plans import StoredPlan

MOST_LIVE = 300
RUN = Key("AgentRun", "ns", "run-1")


READ_BY_OPERATORS = frozenset(
    {"attempt", "turn", "exit", "result", "parked", "pendingApprovals", "control", "effects", "children"}
)
"""Of a snapshot: whatever else stands there changes no decision, and the model need not tell it apart."""


class Picture(NamedTuple):
    """What one operator process knows between two looks, as JSON: the run, its pods, and its own memory."""

    run: str
    pods: tuple[tuple[str, str], ...] = ()
    ghosts: tuple[tuple[str, str], ...] = ()
    memory: Memory | None = None


class Told(NamedTuple):
    """One answer since the look began, and when."""

    answer: Any
    now: float


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A look that waits for an answer (`ask`), or is over (`picture` as it is then)."""

    picture: Picture
    began: float
    told: tuple[Told, ...]
    ask: Ask | None
    is_failed: bool = False
    fault: str = ""
    live: list[tuple[Any, Any, Any]] = field(default_factory=list)
    """The coroutine itself, for the first answer; every other one is given to one that is built anew."""


class _Nothing:
    """Takes every call and does nothing: logs, metrics, events, the queue."""

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Nothing:
        return self


class _NobodySupervises:
    """In place of the operator's supervision: in the model that is a process of its own (`world.Host`)."""

    async def find_problem(self, *_: Any) -> None:
        return None

    async def look(self, key: Any, raw: Any, view: Any, stored: Any) -> Any:
        return view

    async def act(self, *_: Any) -> bool:
        return False

    def forget(self, key: Any) -> None:
        return

    def is_counted(self, key: Any, raw: Any) -> bool:
        return False


class _Settings:
    is_journal_durable = True
    abort_grace_seconds = 30

    def pods(self) -> PodSettings:
        return PodSettings(journal_claim="journals" if self.is_journal_durable else "")


class _Open:
    """Namespaces in which runs begin: one that is suspended only holds back what has made nothing."""

    async def is_suspended(self, namespace: str) -> bool:
        return False


class _Plans:
    def __init__(self, stored: StoredPlan) -> None:
        self._stored = stored

    async def load(self, *_: Any) -> StoredPlan:
        return self._stored


class _Client:
    async def get(self, resource: Any, namespace: str, name: str) -> Any:
        return await Ask("get", (resource.kind, name))

    async def list_pages(self, *args: Any, **kwargs: Any) -> AsyncIterator[list[Any]]:
        """Events of a pod that starts slowly: they change what is said, and nothing that is done."""
        for page in ():
            yield page

    async def json_patch(self, resource: Any, namespace: str, name: str, patch: Any, subresource: str) -> Any:
        return await Ask("patch", json.dumps(patch, sort_keys=True))

    async def create(self, resource: Any, namespace: str, body: Any) -> Any:
        (container,) = body["spec"]["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        return await Ask("create", (int(env[names.ENV_ATTEMPT]), env.get(names.ENV_SETTLE), body["metadata"]["name"]))

    async def delete(self, resource: Any, namespace: str, name: str, uid: str) -> Any:
        return await Ask("delete", name)


class _Desk:
    def __init__(self, plan: Plan, is_durable: bool) -> None:
        report = PlanReport(name=names.plan_name(plan.run.name), digest=text_digest(plan.encode()))
        self.seconds = 0.0
        self.client = _Client()
        self.plans = _Plans(StoredPlan(plan, report))
        self.settings = _Settings()
        self.settings.is_journal_durable = is_durable
        self.metrics = self.events = self.queue = self.finished = _Nothing()
        self.cache = Cache()

    def now(self) -> Any:
        return START + timedelta(seconds=self.seconds)

    def notice(self, raw: Any, is_deleted: bool) -> None:
        self.cache.apply(raw, is_deleted)


class OperatorProcesses:
    """Steps reconcilers of one run; equal steps are made once."""

    def __init__(self, plan: Plan, is_durable: bool = True, reconciler: type[RunReconciler] = RunReconciler) -> None:
        self._plan = plan
        self._is_durable = is_durable
        self._class = reconciler
        self._looks: dict[Any, Look] = {}
        self._trims: dict[Any, str] = {}
        self._live: deque[Look] = deque()
        self.steps_made = 0

    def trim(self, text: str) -> str:
        """Return an object as the cache keeps it; of what a runner reports, only what an operator reads."""
        known = self._trims.get(text)
        if known is None:
            cache = Cache()
            raw = json.loads(text)
            cache.apply(raw)
            raw = next(iter(cache.objects(raw["kind"])))
            reported = raw["status"].get("run")
            if reported is not None:
                read = {name: value for name, value in reported.items() if name in READ_BY_OPERATORS}
                raw = {**raw, "status": {**raw["status"], "run": read}}
            known = self._trims[text] = _text(raw)
        return known

    def look(self, picture: Picture, now: float) -> Look:
        """Begin to look at the run."""
        return self._make(picture, now, ())

    def answer(self, look: Look, answer: Any, now: float) -> Look:
        """Go on with an answer."""
        return self._make(look.picture, look.began, (*look.told, Told(answer, now)))

    def _make(self, picture: Picture, began: float, told: tuple[Told, ...]) -> Look:
        key = (picture, began, told)
        known = self._looks.get(key)
        if known is None:
            self.steps_made += 1
            before = self._looks.get((picture, began, told[:-1])) if told else None
            if before is not None and before.live:
                desk, reconciler, work = before.live.pop()
                asked = _give(desk, work, told[-1])
            else:
                desk, reconciler, work = self._build(picture, began)
                asked = resume(work, None)
                for one in told:
                    asked = _give(desk, work, one)
            known = self._looks[key] = self._looked(picture, began, told, asked, (desk, reconciler, work))
        return known

    def _build(self, picture: Picture, began: float) -> tuple[_Desk, RunReconciler, Any]:
        desk = _Desk(self._plan, self._is_durable)
        desk.cache.apply(_raw(picture.run))
        for _, text in picture.ghosts:
            desk.cache.apply(_raw(text, "1"), is_deleted=True)
        desk.cache._tombstones.clear()
        for _, text in picture.pods:
            desk.cache.apply(_raw(text))
        reconciler = self._class(desk, _Open())  # type: ignore[arg-type]
        reconciler._supervision = _NobodySupervises()  # type: ignore[assignment]
        if picture.memory is not None:
            reconciler._memories._memories[RUN] = picture.memory
        desk.seconds = began
        return desk, reconciler, reconciler._step(RUN)

    def _looked(self, picture: Picture, began: float, told: tuple[Told, ...], asked: Ask | Ended, made: Any) -> Look:
        if isinstance(asked, Ask):
            look = Look(picture, began, told, asked, live=[made])
            self._live.append(look)
            if len(self._live) > MOST_LIVE:
                self._live.popleft().live.clear()
            return look
        desk, reconciler, _ = made
        after = _picture_of(desk.cache, reconciler, picture)
        is_refused = isinstance(asked.fault, ApiError)
        fault = f"{type(asked.fault).__name__}: {asked.fault}" if asked.fault is not None and not is_refused else ""
        return Look(after, began, (), None, asked.fault is not None, fault)


def _give(desk: _Desk, work: Any, told: Told) -> Ask | Ended:
    desk.seconds = told.now
    return resume(work, _answer_of(told.answer))


def _picture_of(cache: Cache, reconciler: RunReconciler, before: Picture) -> Picture:
    run = cache.get(RUN)
    pods = {key.name: _text(cache._objects[key]) for key in cache.keys("Pod")}
    ghosts = {key.name: _text(raw) for key, raw in cache._ghosts.items() if key.name not in pods}
    text = _text(run) if run is not None else before.run
    memory = reconciler._memories._memories.get(RUN)
    return Picture(text, tuple(sorted(pods.items())), tuple(sorted(ghosts.items())), memory)


# ---------------------------------------------------------------- answers: values that can be compared

CONFLICT, NOT_FOUND, EXISTS, AWAY = ("conflict",), ("not found",), ("exists",), ("away",)


def _answer_of(token: Any) -> Any:
    """Return an answer as the asker takes it."""
    match token:
        case ("conflict",):
            return Raises(Conflict(409, "the object has changed"))
        case ("not found",):
            return Raises(NotFound(404, "there is no such object"))
        case ("exists",):
            return Raises(AlreadyExists(409, "there is one"))
        case ("away",):
            return Raises(Unavailable(0, "no answer"))
        case ("object", str(text)):
            return _raw(text, "20")
        case _:
            return token


def _raw(text: str, version: str = "10") -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(text)
    raw["metadata"] = {**raw["metadata"], "resourceVersion": version}
    return raw


def _text(raw: dict[str, Any]) -> str:
    metadata = {name: value for name, value in raw["metadata"].items() if name != "resourceVersion"}
    return json.dumps({**raw, "metadata": metadata}, sort_keys=True)


@contextmanager
def silent() -> Iterator[None]:
    """Keep the reconciler's log lines to itself."""
    log = runs_module.log
    runs_module.log = _Nothing()
    try:
        yield
    finally:
        runs_module.log = log
