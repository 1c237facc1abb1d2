"""The world of the model: an API server, a journal, pods and what they run, operators, a person, faults.

Runners and operators are the real code (`runner_process`, `operator_process`). Everything here is what they ask: each
request is one move, and so is what may go wrong with it. A state is one value; a move makes another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple

from model import properties
from model.checker import Move, Violation
from model.operator_process import AWAY, CONFLICT, EXISTS, NOT_FOUND, Look, OperatorProcesses, Picture
from model.runner_process import FENCED, JOURNAL_AWAY, STORE_AWAY, Entries, Runner, RunnerProcesses, _StepStore
from model.stepping import Ask, resume
from pilothouse_api import names, structs
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan
from pilothouse_api.structs import Control, Snapshot
from pilothouse_api.wake import wake_due
from pilothouse_engine.driver import Driver
from pilothouse_engine.testing.clock import START
from pilothouse_operator.reconcile.runs import RunReconciler
from pilothouse_runner.adapters.kubernetes_run_store import KubernetesRunStore

GRACE_SECONDS = 30.0
AFTERWARDS = 100_000.0
"""How far time goes at a step once the bounds of a scenario are left, to see where a state leads."""


class Pod(NamedTuple):
    """A pod, and the process in it. `is_cut_off`: its node does not answer; what runs there runs on."""

    attempt: int
    uid: str
    settle: str | None
    created: float
    phase: str = "Pending"
    has_node: bool = False
    deletion: float | None = None
    exists: bool = True
    unseen: frozenset[int] = frozenset()
    is_cut_off: bool = False
    runner: Runner | None = None
    exit_code: int | None = None
    did_call: bool = False
    is_unsure: bool = False
    saw_end: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether a process runs in it."""
        return self.runner is not None and self.exit_code is None


class Op(NamedTuple):
    """An operator process: its picture, whether its run is the newest, and the look that is under way."""

    picture: Picture
    is_fresh: bool = True
    look: Look | None = None


class Left(NamedTuple):
    """How many of each fault, and of a person's wishes, are still to come."""

    crashes: int = 0
    lost: int = 0
    evictions: int = 0
    partitions: int = 0
    restarts: int = 0
    late: int = 0
    stale: int = 0
    wishes: int = 0
    deaths: int = 0


class Host(NamedTuple):
    """Supervision that has judged a snapshot: what it is about to write, the first of it next."""

    length: int
    mode: str | None
    writes: tuple[str, ...]


class World(NamedTuple):
    """One state of everything."""

    now: int
    run: str
    journal: Entries
    newest: int
    pods: tuple[Pod, ...]
    ops: tuple[Op, ...]
    done: tuple[tuple[tuple[str, str], int], ...]
    late: tuple[tuple[int, str], ...]
    left: Left
    crashed: int
    ended_at: int | None = None
    """How many facts were journaled when the run was reported as ended."""
    host: Host | None = None
    judged: tuple[tuple[int, str], ...] = ()
    """What supervision has decided: on a snapshot of so many facts, which mode."""


@dataclass(frozen=True)
class Scenario:
    """What runs, what may happen, and how much of it. `wishes` are what a person may make of `spec.control`."""

    name: str
    plan: Plan
    left: Left
    times: tuple[float, ...] = (0.0,)
    operators: int = 1
    replies: Callable[[int], Any] = lambda turn: None
    wishes: Callable[[dict[str, Any], dict[str, Any]], list[tuple[str, dict[str, Any]]]] = lambda control, status: []
    is_durable: bool = True
    output: str = '{"done": true}'
    pod_starts_at_once: bool = True
    barrier: dict[str, Any] | None = None
    verdict: Callable[[int], str | None] = lambda turn: None
    """The mode that supervision asks for when it has seen a turn."""


@dataclass(frozen=True)
class Parts:
    """The code that is checked, and rules of the servers: a mutation exchanges one."""

    driver: type[Driver] = Driver
    reconciler: type[RunReconciler] = RunReconciler
    has_journal_fence: bool = True
    has_status_test: bool = True
    has_precondition: bool = True
    host_writes: tuple[str, ...] = ("directive", "clock")
    """In which order supervision writes."""


@cache
def load(text: str) -> Any:
    """Return a JSON text's value, which nobody changes."""
    return json.loads(text)


def dump(value: Any) -> str:
    return _one(json.dumps(value, sort_keys=True))


@cache
def _published(run: str) -> str:
    return dump(load(run)["status"].get("run"))


_TEXTS: dict[str, str] = {}


def _one(text: str) -> str:
    return _TEXTS.setdefault(text, text)


class PilothouseModel:
    """All that can happen to one run."""

    def __init__(self, scenario: Scenario, parts: Parts | None = None) -> None:
        self.scenario = scenario
        self.parts = parts or Parts()
        self.runners = RunnerProcesses(
            structs.Plan.read(scenario.plan.to_raw()), scenario.replies, scenario.is_durable, self.parts.driver
        )
        self.operators = OperatorProcesses(scenario.plan, scenario.is_durable, self.parts.reconciler)
        self._publishes: dict[tuple[int, str, int | None], str] = {}
        self._raws: dict[Any, str] = {}
        self._patched: dict[tuple[str, int | str], str] = {}

    # ------------------------------------------------------------ what is asked of a model

    def first(self) -> World:
        plan = self.scenario.plan
        report = {"name": names.plan_name(plan.run.name), "digest": text_digest(plan.encode())}
        metadata = {"name": "run-1", "namespace": "ns", "uid": "uid-1", "generation": 1}
        status: dict[str, Any] = {"plan": report}
        if self.scenario.barrier is not None:
            guard = {"uid-s": {"name": "guard"}}
            status["supervision"] = {"barrier": self.scenario.barrier, "supervisors": guard}
        run = dump(
            {
                "apiVersion": names.API_VERSION,
                "kind": "AgentRun",
                "metadata": {**metadata, "creationTimestamp": self._iso(0.0)},
                "spec": {"workflowRef": {"name": "flow"}},
                "status": status,
            }
        )
        op = Op(Picture(self.operators.trim(run)))
        return World(0, run, (), 0, (), (op,) * self.scenario.operators, (), (), self.scenario.left, 0)

    def check(self, world: World) -> None:
        properties.check_state(world)

    def is_end(self, world: World) -> bool:
        status = load(world.run)["status"]
        if "exit" in status:
            return True
        park = properties.park_of(world.journal)
        if park is None or status.get("run") is None:
            return False
        snapshot, control = Snapshot.read(status["run"]), load(world.run)["spec"].get("control")
        if snapshot.parked is None or snapshot.parked.reason not in ("Paused", "AwaitingApproval"):
            return False
        asked = Control.read(control) if control is not None else None
        return not wake_due(snapshot, asked, self._moment(world.now))

    def moves(self, world: World) -> Iterator[Move]:
        """Return what can happen; states that differ in nothing that matters any more are one."""
        return (
            Move(label, lambda make=make: _normal(make()), is_extra) for label, make, is_extra in self._moves(world)
        )

    def _moves(self, world: World) -> Iterator[Move]:
        if "exit" in load(world.run)["status"] and not any(pod.is_alive for pod in world.pods) and not world.late:
            return
        for number, pod in enumerate(world.pods):
            ask = pod.runner.ask if pod.is_alive and pod.runner is not None else None
            if ask is not None and ask.kind in ("sleep", "model"):  # what nobody else can see goes first
                yield from self._runner_moves(world, number)
                return
        for number in range(len(world.pods)):
            yield from self._pod_moves(world, number)
        for number in range(len(world.ops)):
            yield from self._operator_moves(world, number)
        yield from self._host_moves(world)
        yield from self._wishes(world)
        for number, (attempt, _) in enumerate(world.late):
            make = partial(self._arrive_late, world, number)
            yield Move(f"a write of attempt {attempt} arrives late", make)
        if world.now + 1 < len(self.scenario.times):
            yield Move(f"time goes on to {self.scenario.times[world.now + 1]:g} s", lambda: self._tick(world))

    def go_on(self, world: World) -> World | None:
        """Let everybody do one thing, without faults; let time go on where nobody can."""
        before = world
        for kind in ("pods", "ops"):
            for number in range(len(getattr(world, kind))):
                moves = self._pod_moves if kind == "pods" else self._operator_moves
                if number < len(getattr(world, kind)):
                    usual = [move for move in moves(world, number) if not move.is_extra]
                    if usual:
                        world = usual[0].make()  # type: ignore[assignment]
        usual = [move for move in self._host_moves(world) if not move.is_extra]
        if usual:
            world = usual[0].make()  # type: ignore[assignment]
        if world.late:
            world = self._arrive_late(world, 0)
        return world if world != before else self._tick(world)

    # ------------------------------------------------------------ time

    def seconds(self, world_now: int) -> float:
        times = self.scenario.times
        beyond = world_now - len(times) + 1
        return times[world_now] if beyond <= 0 else times[-1] + beyond * AFTERWARDS

    def _moment(self, now: int) -> datetime:
        return START + timedelta(seconds=self.seconds(now))

    def _iso(self, seconds: float) -> str:
        return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tick(self, world: World) -> World:
        """Let time go on: a kubelet that answers kills what is left at the end of its grace."""
        now = self.seconds(world.now + 1)
        pods = tuple(
            pod._replace(exit_code=137)
            if pod.is_alive and not pod.is_cut_off and pod.deletion is not None and now > pod.deletion
            else pod
            for pod in world.pods
        )
        return world._replace(now=world.now + 1, pods=pods)

    # ------------------------------------------------------------ the API server

    def _changed(self, world: World, run: str, writer: int | None = None) -> World:
        """Store the run: every picture of it is an old one now, but the writer's."""
        if run == world.run:
            return world
        ops = tuple(op._replace(is_fresh=number == writer) for number, op in enumerate(world.ops))
        after = world._replace(run=run, ops=ops)
        if "exit" in load(run)["status"] and after.ended_at is None:
            after = after._replace(ended_at=len(after.journal))
        properties.check_write(world, after)
        return after

    def _patch_run(self, world: World, patch: list[dict[str, Any]], attempt: int) -> tuple[World, int]:
        """Apply a runner's JSON patch to the run's status."""
        raw = load(world.run)
        status = raw["status"]
        for operation in patch:
            if operation["op"] == "test" and self.parts.has_status_test:
                value: Any = raw
                for part in operation["path"].strip("/").split("/"):
                    value = value.get(part) if isinstance(value, dict) else None
                if value != operation["value"]:
                    return world, 422
        (written,) = [operation["value"] for operation in patch if operation["op"] == "add"]
        properties.check_snapshot(world, status, written, attempt)
        key = (world.run, id(patch))
        if key not in self._patched:
            self._patched[key] = dump({**raw, "status": {**status, "run": written}})
        return self._changed(world, self._patched[key]), 200

    def _arrive_late(self, world: World, number: int) -> World:
        attempt, patch = world.late[number]
        world = world._replace(late=world.late[:number] + world.late[number + 1 :])
        return self._patch_run(world, load(patch), attempt)[0]

    # ------------------------------------------------------------ pods and the kubelet

    def _pod_moves(self, world: World, number: int) -> Iterator[Move]:
        pod = world.pods[number]
        now, name = self.seconds(world.now), f"pod {pod.attempt}"
        put = partial(self._put, world, number)
        if pod.is_alive:
            yield from self._runner_moves(world, number)
        if pod.exists and not pod.is_cut_off:
            if pod.runner is None and pod.deletion is None and pod.phase == "Pending":
                yield Move(f"{name} starts", lambda: put(self._start(pod, now)))
            if pod.is_alive and pod.phase == "Pending":
                yield Move(f"{name} is said to run", lambda: put(pod._replace(phase="Running")))
            if pod.exit_code is not None and pod.phase in ("Pending", "Running"):
                phase = "Succeeded" if pod.exit_code == 0 else "Failed"
                yield Move(f"{name} is said to have ended", lambda: put(pod._replace(phase=phase)))
            if pod.deletion is not None:
                yield from self._deletion_moves(world, number, now)
        yield from self._pod_faults(world, number, now)

    def _start(self, pod: Pod, now: float) -> Pod:
        return pod._replace(
            has_node=True,
            runner=self.runners.begin(pod.attempt, pod.settle, now),
            phase="Running" if self.scenario.pod_starts_at_once else "Pending",
        )

    def _deletion_moves(self, world: World, number: int, now: float) -> Iterator[Move]:
        pod = world.pods[number]
        name, put = f"pod {pod.attempt}", partial(self._put, world, number)
        assert pod.deletion is not None
        if pod.is_alive and pod.runner is not None and not pod.runner.is_stopping:
            stopped = pod._replace(runner=self.runners.terminate(pod.runner, now), did_call=False)
            yield Move(f"SIGTERM reaches {name}", lambda: put(self._ended(stopped)))
        if not pod.is_alive:
            yield Move(f"{name} is removed", lambda: self._remove(world, number))

    def _pod_faults(self, world: World, number: int, now: float) -> Iterator[Move]:
        pod, left = world.pods[number], world.left
        name = f"pod {pod.attempt}"
        if pod.is_alive and left.crashes:
            crashed = world._replace(left=left._replace(crashes=left.crashes - 1), crashed=world.crashed + 1)
            yield Move(
                f"the runner of {name} crashes", lambda: self._put(crashed, number, pod._replace(exit_code=1)), True
            )
        if not pod.exists or pod.phase in ("Succeeded", "Failed"):
            return
        if left.evictions and pod.deletion is None:
            drained = world._replace(left=left._replace(evictions=left.evictions - 1))
            deleted = pod._replace(deletion=now + GRACE_SECONDS)
            yield Move(f"somebody deletes {name}", lambda: self._put(drained, number, deleted), True)
        if left.partitions and pod.is_alive:
            cut = world._replace(left=left._replace(partitions=left.partitions - 1))
            lost = pod._replace(is_cut_off=True, deletion=pod.deletion or now + GRACE_SECONDS)
            yield Move(f"the node of {name} is cut off", lambda: self._put(cut, number, lost), True)
        if pod.is_cut_off:
            yield Move(f"{name} is removed by force", lambda: self._remove(world, number), True)

    def _put(self, world: World, number: int, pod: Pod) -> World:
        pods = (*world.pods[:number], pod, *world.pods[number + 1 :])
        return world._replace(pods=pods)

    def _remove(self, world: World, number: int) -> World:
        pod = world.pods[number]._replace(exists=False, unseen=frozenset(range(len(world.ops))))
        return self._put(world, number, pod)

    def _ended(self, pod: Pod) -> Pod:
        """Return a pod whose process has ended, where it has."""
        assert pod.runner is not None
        if pod.runner.ask is not None:
            return pod
        properties.check_exit(pod)
        return pod._replace(exit_code=pod.runner.exit_code)

    def pod_raw(self, pod: Pod) -> str:
        """Return a pod as the API server shows it."""
        key = (pod.attempt, pod.uid, pod.created, pod.phase, pod.has_node, pod.deletion, pod.exit_code)
        known = self._raws.get(key)
        if known is None:
            known = self._raws[key] = dump(self._build_pod(pod))
        return known

    def _build_pod(self, pod: Pod) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": names.pod_name("run-1", pod.attempt),
            "namespace": "ns",
            "uid": pod.uid,
            "creationTimestamp": self._iso(pod.created),
            "labels": {names.LABEL_ATTEMPT: str(pod.attempt)},
            "ownerReferences": [{"uid": "uid-1", "controller": True}],
        }
        if pod.deletion is not None:
            metadata["deletionTimestamp"] = self._iso(pod.deletion)
            metadata["deletionGracePeriodSeconds"] = int(GRACE_SECONDS)
        status: dict[str, Any] = {"phase": pod.phase}
        if pod.phase == "Running":
            status["containerStatuses"] = [{"name": "runner", "state": {"running": {}}}]
        elif pod.phase in ("Succeeded", "Failed"):
            ended = {"exitCode": pod.exit_code, "reason": "Completed" if pod.exit_code == 0 else "Error"}
            status["containerStatuses"] = [{"name": "runner", "state": {"terminated": ended}}]
        spec = {"nodeName": "n1"} if pod.has_node else {}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    # ------------------------------------------------------------ runners

    def _runner_moves(self, world: World, number: int) -> Iterator[Move]:
        pod = world.pods[number]
        runner, left = pod.runner, world.left
        assert runner is not None and runner.ask is not None
        ask, name, now = runner.ask, f"runner {pod.attempt}", self.seconds(world.now)
        lost = world._replace(left=left._replace(lost=left.lost - 1))
        answer = partial(self._answer, number=number, now=now)
        match ask.kind:
            case "read":
                yield Move(f"{name} reads the journal", lambda: answer(world, world.journal))
            case "append":
                yield Move(f"{name} journals {_facts(ask)}", lambda: self._append(world, number, now))
                if left.lost:
                    yield Move(f"{name} cannot journal", lambda: answer(lost, JOURNAL_AWAY), True)
                    yield Move(
                        f"{name} journals {_facts(ask)}, not knowing it",
                        lambda: self._append_unsure(lost, number, now),
                        True,
                    )
            case "GET":
                yield Move(f"{name} reads the run", lambda: self._read_run(world, number, now))
                if left.lost:
                    yield Move(f"{name} cannot read the run", lambda: answer(lost, STORE_AWAY), True)
            case "PATCH":
                yield from self._patch_moves(world, number, now)
            case "wait":
                if self._has_news(world, runner):
                    yield Move(f"{name} stops waiting", lambda: answer(world, None))
            case "sleep" | "model":
                yield Move(f"{name} {'wakes' if ask.kind == 'sleep' else 'has a reply'}", lambda: answer(world, None))
            case "call" if not pod.did_call:
                yield Move(f"{name} DOES {ask.payload[0]} {ask.payload[1]}", lambda: self._do_call(world, number))
            case "call":
                yield Move(f"{name} has the result", lambda: answer(world, ("function", self.scenario.output)))
            case _:
                raise AssertionError(f"nobody answers {ask}")
        yield from self._background(world, number)

    def _background(self, world: World, number: int) -> Iterator[Move]:
        pod = world.pods[number]
        assert pod.runner is not None
        text = pod.runner.snapshot
        if text is None or pod.runner.ask is None or pod.runner.ask.kind not in ("call", "wait"):
            return
        if _published(world.run) == text:
            return
        patch = load(self._publish_of(pod.attempt, text, pod.runner.length))
        try:
            after, status = self._patch_run(world, patch, pod.attempt)
        except Violation as violation:
            yield Move(f"runner {pod.attempt} publishes{_said(text)}", partial(_raise, violation))
            return
        if status == 200:
            told = self.runners.publish(pod.runner, load(text).get("journalLength", 0))
            after = self._put(after, number, pod._replace(runner=told))
            yield Move(f"runner {pod.attempt} publishes{_said(text)}", lambda: after)

    def _publish_of(self, attempt: int, text: str, length: int | None) -> str:
        """Return the patch that the real adapter makes of a snapshot."""
        key = (attempt, text, length)
        known = self._publishes.get(key)
        if known is None:
            store = _StepStore.__new__(_StepStore)
            KubernetesRunStore.__init__(store, _NoServer(), "ns", "run-1", "uid-1", attempt)  # type: ignore[arg-type]
            store._length = length
            asked = resume(store.publish(Snapshot.read(load(text))), None)
            assert isinstance(asked, Ask)
            known = self._publishes[key] = _one(asked.payload)
        return known

    def _patch_moves(self, world: World, number: int, now: float) -> Iterator[Move]:
        pod = world.pods[number]
        assert pod.runner is not None and pod.runner.ask is not None
        left, patch = world.left, load(pod.runner.ask.payload)
        name = f"runner {pod.attempt}"
        what = _said(dump(next(operation["value"] for operation in patch if operation["op"] == "add")))

        def publish(before: World, token: Any = None) -> World:
            after, status = self._patch_run(before, patch, pod.attempt)
            return self._answer(after, token or ("http", status, after.run if status == 200 else "{}"), number, now)

        yield Move(f"{name} publishes{what}", lambda: publish(world))
        if left.lost:
            lost = world._replace(left=left._replace(lost=left.lost - 1))
            yield Move(f"{name} publishes{what}, not knowing it", lambda: publish(lost, STORE_AWAY), True)
            yield Move(f"{name} cannot publish", lambda: self._answer(lost, STORE_AWAY, number, now), True)
        if left.late:
            late = world._replace(
                left=left._replace(late=left.late - 1), late=(*world.late, (pod.attempt, dump(patch)))
            )
            yield Move(
                f"{name} publishes{what}, which hangs", lambda: self._answer(late, STORE_AWAY, number, now), True
            )

    def _has_news(self, world: World, runner: Runner) -> bool:
        """Whether the run's object has changed for a waiting runner, or time has gone on since it began to wait."""
        raw = load(world.run)
        known = load(runner.top.directives) if runner.top.directives is not None else None
        seen = ((raw["status"].get("supervision") or {}).get("clock") or {}).get("journalLength", 0)
        is_known = known is not None and (known[1], known[-1]) == (raw["metadata"]["generation"], seen)
        has_time_gone = self.seconds(world.now) > (runner.given[-1].now if runner.given else runner.top.now)
        return not is_known or has_time_gone or raw["status"].get("attempt") != runner.top.attempt

    def _answer(self, world: World, token: Any, number: int, now: float) -> World:
        pod = world.pods[number]
        assert pod.runner is not None
        after = self._ended(pod._replace(runner=self.runners.answer(pod.runner, token, now), did_call=False))
        has_twin = any(one is not pod and one.attempt == pod.attempt and one.is_alive for one in world.pods)
        if has_twin and after.exit_code == 3:  # who begins last wins, and the other one's end is a crash to an operator
            world = world._replace(crashed=world.crashed + 1)
        return self._put(world, number, after)

    def _read_run(self, world: World, number: int, now: float) -> World:
        seen = world.pods[number]._replace(saw_end="exit" in load(world.run)["status"])
        return self._answer(self._put(world, number, seen), ("http", 200, world.run), number, now)

    def _append(self, world: World, number: int, now: float) -> World:
        pod = world.pods[number]
        assert pod.runner is not None and pod.runner.ask is not None
        attempt, seq, texts = pod.runner.ask.payload
        if pod.is_unsure and world.journal[seq:] == texts:
            token = None  # the adapter has read back what it had written
        elif self.parts.has_journal_fence and (attempt < world.newest or seq != len(world.journal)):
            token = FENCED
        else:
            token, world = None, self._write(world, attempt, texts)
        world = self._put(world, number, pod._replace(is_unsure=False))
        return self._answer(world, token, number, now)

    def _append_unsure(self, world: World, number: int, now: float) -> World:
        pod = world.pods[number]
        assert pod.runner is not None and pod.runner.ask is not None
        attempt, seq, texts = pod.runner.ask.payload
        if attempt >= world.newest and seq == len(world.journal):
            world = self._write(world, attempt, texts)
            world = self._put(world, number, pod._replace(is_unsure=True))
        return self._answer(world, JOURNAL_AWAY, number, now)

    def _write(self, world: World, attempt: int, texts: Entries) -> World:
        journal = (*world.journal, *(_one(text) for text in texts))
        properties.check_facts(world, journal, texts)
        return world._replace(journal=journal, newest=max(world.newest, attempt))

    def _do_call(self, world: World, number: int) -> World:
        pod = world.pods[number]
        assert pod.runner is not None and pod.runner.ask is not None
        done = dict(world.done)
        done[pod.runner.ask.payload] = done.get(pod.runner.ask.payload, 0) + 1
        world = world._replace(done=tuple(sorted(done.items())))
        world = self._put(world, number, pod._replace(did_call=True))
        properties.check_call(world, pod, pod.runner.ask.payload)
        return world

    # ------------------------------------------------------------ operators

    def _operator_moves(self, world: World, number: int) -> Iterator[Move]:
        """An operator sees what is and looks; or, as a fault, looks at what it has seen before."""
        op = world.ops[number]
        name = "the operator" if len(world.ops) == 1 else f"operator {number + 1}"
        if op.look is not None:
            yield from self._request_moves(world, number, op.look, f"{name} ")
        else:
            shown = self._show(world, number)
            yield from self._look_moves(world, shown, number, f"{name} sees what is and ")
            if world.left.stale and shown != world:
                late = world._replace(left=world.left._replace(stale=world.left.stale - 1))
                of_run = self._show(late, number, is_of_pods=False)
                for seen, what in {late: "is behind and ", of_run: "is behind with pods and "}.items():
                    for move in self._look_moves(late, seen, number, f"{name} {what}"):
                        yield Move(move.label, move.make, True)
        if world.left.restarts:
            again = world._replace(left=world.left._replace(restarts=world.left.restarts - 1))
            yield Move(f"{name} starts anew", lambda: self._restart(again, number), True)

    def _look_moves(self, before: World, world: World, number: int, who: str) -> Iterator[Move]:
        picture = world.ops[number].picture
        if "exit" in load(picture.run)["status"]:
            return
        look = self.operators.look(picture, self.seconds(world.now))
        if look.ask is not None:
            yield from self._request_moves(world, number, look, who)
            return
        after = self._end_look(world, number, look)
        if after != before:
            yield Move(f"{who}does nothing", lambda: after)

    def _show(self, world: World, number: int, *, is_of_pods: bool = True) -> World:
        """Let the watches of an operator catch up: with all, since what they are behind by is any look before."""
        op = world.ops[number]
        picture = op.picture
        run = picture.run if op.is_fresh else self.operators.trim(world.run)
        pods, ghosts = dict(picture.pods), dict(picture.ghosts)
        seen = []
        for pod in world.pods:
            name = names.pod_name("run-1", pod.attempt)
            if not is_of_pods:
                pass
            elif pod.exists:
                pods[name] = self.operators.trim(self.pod_raw(pod))
                ghosts.pop(name, None)
            elif number in pod.unseen:
                pods.pop(name, None)
                ghosts[name] = self.operators.trim(self.pod_raw(pod))
            is_news = is_of_pods and number in pod.unseen
            seen.append(pod._replace(unseen=pod.unseen - {number}) if is_news else pod)
        current = load(run)["status"].get("pod", {}).get("name")
        picture = Picture(
            _one(run),
            tuple(sorted((name, raw) for name, raw in pods.items() if name == current)),
            tuple(sorted((name, raw) for name, raw in ghosts.items() if name == current)),
            picture.memory,
        )
        kept = tuple(pod for pod in seen if pod.exists or pod.is_alive or pod.unseen)
        return self._put_op(world._replace(pods=kept), number, op._replace(picture=picture, is_fresh=True))

    def _restart(self, world: World, number: int) -> World:
        """Begin with an empty memory and a fresh listing: no deletion of before is ever heard of."""
        pods = tuple(pod._replace(unseen=pod.unseen - {number}) for pod in world.pods)
        op = Op(Picture(self.operators.trim(world.run)), True)
        return self._show(self._put_op(world._replace(pods=pods), number, op), number)

    def _put_op(self, world: World, number: int, op: Op) -> World:
        return world._replace(ops=(*world.ops[:number], op, *world.ops[number + 1 :]))

    def _request_moves(self, world: World, number: int, look: Look, who: str) -> Iterator[Move]:
        assert look.ask is not None
        kind, payload, left = look.ask.kind, look.ask.payload, world.left
        what = f"{kind} {_patched(payload) if kind == 'patch' else payload}"
        try:
            after, token = self._serve(world, number, look.ask)
        except Violation as violation:
            yield Move(f"{who}asks: {what}", partial(_raise, violation))
            return
        is_refused = token in (CONFLICT, NOT_FOUND, EXISTS)
        yield Move(
            f"{who}asks: {what}{' (' + token[0] + ')' if is_refused else ''}",
            lambda: self._tell(after, number, look, token),
        )
        if left.lost and kind != "get":
            lost = after._replace(left=left._replace(lost=left.lost - 1))
            ops = tuple(op._replace(is_fresh=False) if n == number else op for n, op in enumerate(lost.ops))
            yield Move(
                f"{who}asks, not knowing: {what}", lambda: self._tell(lost._replace(ops=ops), number, look, AWAY), True
            )

    def _serve(self, world: World, number: int, ask: Ask) -> tuple[World, Any]:
        """Return what the API server makes of an operator's request, and its answer."""
        match ask.kind, ask.payload:
            case "get", ("AgentRun", _):
                op = world.ops[number]._replace(is_fresh=True)
                return self._put_op(world, number, op), ("object", world.run)
            case "get", (_, name):
                pod = self._find(world, name)
                return world, ("object", self.pod_raw(pod)) if pod is not None else NOT_FOUND
            case "patch", _:
                return self._patch_status(world, number, ask.payload)
            case "create", (attempt, settle, name):
                if self._find(world, name) is not None:
                    return world, EXISTS
                made = sum(pod.attempt == attempt for pod in world.pods)
                now = self.seconds(world.now)
                pod = Pod(attempt, f"pod-{attempt}-{made}", settle or None, now)
                after = world._replace(pods=(*world.pods, pod))
                properties.check_pod(after, pod)
                return after, ("object", self.pod_raw(pod))
            case "delete", name:
                return self._delete(world, name), None
            case _:
                raise AssertionError(f"nobody answers {ask}")

    def _find(self, world: World, name: str) -> Pod | None:
        return next((p for p in world.pods if p.exists and names.pod_name("run-1", p.attempt) == name), None)

    def _delete(self, world: World, name: str) -> World:
        pod = self._find(world, name)
        if pod is None or pod.deletion is not None:
            return world
        number = world.pods.index(pod)
        if pod.runner is None or pod.phase in ("Succeeded", "Failed"):
            return self._remove(world, number)
        return self._put(world, number, pod._replace(deletion=self.seconds(world.now) + GRACE_SECONDS))

    def _patch_status(self, world: World, number: int, text: str) -> tuple[World, Any]:
        has_version = "/metadata/resourceVersion" in text
        if has_version and self.parts.has_precondition and not world.ops[number].is_fresh:
            return world, CONFLICT
        key = (world.run, text)
        if key not in self._patched:
            raw = load(world.run)
            status = dict(raw["status"])
            for operation in load(text):
                name = operation["path"].removeprefix("/status/")
                if operation["op"] == "remove":
                    status.pop(name, None)
                elif operation["path"].startswith("/status/"):
                    status[name] = operation["value"]
            self._patched[key] = dump({**raw, "status": status})
        run = self._patched[key]
        return self._changed(world, run, number), ("object", run)

    def _tell(self, world: World, number: int, look: Look, token: Any) -> World:
        after = self.operators.answer(look, token, self.seconds(world.now))
        if after.ask is None:
            return self._end_look(world, number, after)
        return self._put_op(world, number, world.ops[number]._replace(look=after))

    def _end_look(self, world: World, number: int, look: Look) -> World:
        properties.check_look(look)
        picture = look.picture
        current = load(picture.run)["status"].get("pod", {}).get("name")
        picture = picture._replace(
            run=_one(picture.run),
            pods=tuple(one for one in picture.pods if one[0] == current),
            ghosts=tuple(one for one in picture.ghosts if one[0] == current),
        )
        return self._put_op(world, number, world.ops[number]._replace(picture=picture, look=None))

    # ------------------------------------------------------------ supervision

    def _host_moves(self, world: World) -> Iterator[Move]:
        """Supervision judges what waits at a barrier, writes its directive, raises the clock; it may die between."""
        raw = load(world.run)
        if self.scenario.barrier is None or "exit" in raw["status"]:
            return
        host = world.host
        if host is None:
            yield from self._judging(world, raw["status"])
            return
        write, *rest = host.writes
        after = self._changed(world, self._written(raw, host, write))
        after = after._replace(host=host._replace(writes=tuple(rest)) if rest else None)
        yield Move(f"supervision writes its {write} ({host.length})", lambda: after)
        if world.left.deaths:
            left = world.left._replace(deaths=world.left.deaths - 1)
            yield Move("supervision dies", lambda: world._replace(host=None, left=left), True)

    def _judging(self, world: World, status: dict[str, Any]) -> Iterator[Move]:
        snapshot, clock = status.get("run") or {}, status["supervision"].get("clock") or {}
        length = snapshot.get("journalLength", 0)
        if (snapshot.get("parked") or {}).get("reason") != "Barrier" or length <= clock.get("journalLength", 0):
            return
        mode = self.scenario.verdict(snapshot["turn"])
        host = Host(length, mode, self.parts.host_writes if mode is not None else ("clock",))
        judged = world.judged if mode is None else tuple(sorted({*world.judged, (length, mode)}))
        yield Move(f"supervision judges {length}: {mode}", lambda: world._replace(host=host, judged=judged))

    def _written(self, raw: dict[str, Any], host: Host, write: str) -> str:
        """Return the run with one write of supervision in it; what stands already is not written again."""
        if write == "clock":
            supervision = {**raw["status"]["supervision"], "clock": {"journalLength": host.length}}
            return dump({**raw, "status": {**raw["status"], "supervision": supervision}})
        control = raw["spec"].get("control") or {}
        if control.get("mode") == host.mode:
            return dump(raw)
        metadata = {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}
        return dump({**raw, "metadata": metadata, "spec": {**raw["spec"], "control": {**control, "mode": host.mode}}})

    # ------------------------------------------------------------ a person

    def _wishes(self, world: World) -> Iterator[Move]:
        if not world.left.wishes:
            return
        raw = load(world.run)
        for label, control in self.scenario.wishes(raw["spec"].get("control") or {}, raw["status"]):
            metadata = {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}
            run = dump({**raw, "metadata": metadata, "spec": {**raw["spec"], "control": control}})
            after = world._replace(left=world.left._replace(wishes=world.left.wishes - 1))
            yield Move(label, partial(self._changed, after, run), True)


@cache
def _attempt_of(run: str) -> int:
    return load(run)["status"].get("attempt") or 0


def _normal(world: World) -> World:
    """Forget pods of older attempts that run nothing, and what is shown of those that run on."""
    attempt = _attempt_of(world.run)
    if all(pod.attempt >= attempt and (pod.exists or pod.unseen or pod.is_alive) for pod in world.pods):
        return world
    kept = []
    for pod in world.pods:
        if pod.attempt >= attempt:
            if pod.exists or pod.unseen or pod.is_alive:
                kept.append(pod)
        elif pod.is_alive:
            gone = {"exists": False, "unseen": frozenset(), "created": 0.0, "deletion": None, "phase": "Running"}
            kept.append(pod._replace(**gone) if pod.is_cut_off else pod)
    return world._replace(pods=tuple(kept))


def _raise(violation: Violation) -> None:
    raise violation


class _NoServer:
    url = ""


def _facts(ask: Ask) -> str:
    return "+".join(load(text)["fact"] for text in ask.payload[2])


def _said(text: str) -> str:
    said = load(text)
    parked = said.get("parked") or {}
    state = parked.get("reason", "") + (" released" if parked.get("released") else "")
    reason = (said.get("exit") or {}).get("reason", "")
    return f" [{' '.join(part for part in (str(said.get('journalLength')), state, reason) if part)}]"


def _patched(payload: str) -> str:
    status = {operation["path"].removeprefix("/status/"): operation.get("value") for operation in json.loads(payload)}
    shown = {name: status[name] for name in ("attempt", "attempts", "exit") if name in status}
    conditions = {one["type"]: one["reason"] for one in status.get("conditions", ()) if one["status"] == "True"}
    return f"{shown} {conditions}"
