"""The play itself, the same on every level: runs are started, killed, waited for and judged."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml

from chaos.evidence import Evidence, Mark, Process
from chaos.journals import Shelf, ShelfAway, prefix_digest
from chaos.kubelet import Container
from chaos.mirror import Mirror
from chaos.person import Person
from chaos.plans import RunPlan, Strike, child_strikes, helper, plan_run
from chaos.services import ToolServer, Trouble
from chaos.verdict import judge
from chaos.witness import Witness
from pilothouse_engine.ports import RawEntry
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    AGENTS,
    PODS,
    WORKFLOWS,
    AlreadyExists,
    ApiError,
    KubernetesClient,
    Raw,
)
from pilothouse_kubernetes.connection import Connection

Say = Callable[[str], None]

QUIET_SECONDS = 300.0
"""How long a run may take to end once nothing is killed any more: the longest backoff and a busy machine."""
DRAIN_SECONDS = 30.0


class Hand(Protocol):
    """Who strikes runners: the stand-in kubelet, or somebody with rights on a real node."""

    kills: Counter[str]
    struck: list[Raw]
    faults: list[str]
    containers: dict[str, Container]

    def notice(self, kind: str, pod: Raw) -> None: ...

    def alive(self, run: str) -> list[Container]: ...

    async def close(self) -> None: ...


class Services(Protocol):
    """What stands beside the runners."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def faults(self) -> list[str]:
        """Return what they did not mean to do."""
        ...

    def drift(self) -> int:
        """Return how often a sweep found what a watch had missed."""
        ...

    def keep_logs(self, folder: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class Show:
    """What is asked for."""

    seed: int
    kills: int
    """Go on until so many processes were killed."""
    width: int = 8
    """Runs at a time."""
    level: str = "plane"
    only: int | None = None
    """The number of the one run that is played."""
    is_on_files: bool = False
    """Whether journals lie in files and not in Redis."""
    is_brisk: bool = False
    """Nothing that takes long, for `make test`."""
    pause: tuple[float, float] = (5.0, 18.0)
    """Time between two kills of services."""


@dataclass
class Result:
    """What came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    violations: dict[str, list[str]] = field(default_factory=dict)
    runs: int = 0
    executions: int = 0
    drift: int = 0
    """What a sweep found that a watch had missed."""

    @property
    def is_good(self) -> bool:
        return not self.violations


@dataclass
class Play:
    """The stage and its cast."""

    show: Show
    connection: Connection
    api: KubernetesClient
    namespace: str
    folder: Path
    shelf: Shelf
    tools: ToolServer
    services: Services
    hand: Hand
    witness: Witness
    person: Person
    trouble: Trouble
    say: Say
    plans: dict[str, RunPlan] = field(default_factory=dict)
    strikes: dict[str, list[Strike]] = field(default_factory=dict)
    marks: dict[str, list[Mark]] = field(default_factory=dict)
    result: Result = field(default_factory=Result)
    is_calm: bool = False

    # ------------------------------------------------------------ the play

    async def play(self) -> Result:
        """Start runs until enough was killed, wait until all have ended, judge each."""
        loop = asyncio.get_running_loop()
        crew = [
            loop.create_task(Mirror(self.connection, PODS, self.namespace, self.hand.notice).follow()),
            loop.create_task(Mirror(self.connection, AGENTRUNS, self.namespace, self.witness.notice).follow()),
        ]
        trouble = loop.create_task(self.trouble.make())
        talk = loop.create_task(self._talk())
        self.services.start()
        try:
            await self._run_all(trouble)
            await self._settle()
        finally:
            for task in (*crew, trouble, talk):
                task.cancel()
            await asyncio.gather(*crew, trouble, talk, return_exceptions=True)
            await self.services.stop()
            await self.hand.close()
        self._judge_services()
        return self.result

    async def _run_all(self, trouble: asyncio.Task[None]) -> None:
        await self._create(AGENTS, helper(self.tools.address))
        numbers = iter([self.show.only] if self.show.only is not None else range(1_000_000))
        live: set[asyncio.Task[None]] = set()
        while True:
            while len(live) < self.show.width and not self.has_killed_enough():
                number = next(numbers, None)
                if number is None:
                    break
                live.add(asyncio.get_running_loop().create_task(self._one(number)))
            if trouble.done() and not trouble.cancelled():
                trouble.result()  # it never ends by itself
            if self.has_killed_enough() and not self.is_calm:
                self.is_calm = True
                trouble.cancel()
                self.say("enough was killed; waiting for the runs that are left")
                for strikes in self.strikes.values():
                    strikes.clear()
            if not live:
                return
            done, live = await asyncio.wait(live, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def has_killed_enough(self) -> bool:
        return self.kills() >= self.show.kills

    def kills(self) -> int:
        return self.hand.kills.total() + self.trouble.kills.total()

    async def _one(self, number: int) -> None:
        plan = plan_run(self.show.seed, number, self.tools.address, is_brisk=self.show.is_brisk)
        self.plans[plan.name], self.strikes[plan.name] = plan, list(plan.strikes)
        self.result.runs += 1
        if plan.is_model_served:
            async with aiohttp.ClientSession() as session:
                spare = [{"text": "stopped early", "usage": {"input": 9, "output": 3}}]
                await session.post(f"{self.tools.address}/scripts/{plan.name}", json=plan.script + spare)
        await self._create(WORKFLOWS, plan.workflow)
        await self._create(AGENTRUNS, plan.run)
        attending = asyncio.get_running_loop().create_task(self.person.attend(plan))
        try:
            await self._wait_end(plan)
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)
        await self._wait_no_process(plan)
        await self._judge(plan)

    async def _create(self, resource: Any, body: Raw) -> None:
        while True:
            try:
                await self.api.create(resource, self.namespace, body)
            except AlreadyExists:
                return
            except ApiError as error:
                if 400 <= error.status < 500 and error.status != 429:
                    raise
                await asyncio.sleep(0.3)
            else:
                return

    async def _wait_end(self, plan: RunPlan) -> None:
        patience = QUIET_SECONDS
        while not self.witness.is_finished(plan.name):
            await asyncio.sleep(0.1)
            patience = patience - 0.1 if self.is_calm else QUIET_SECONDS
            if patience <= 0:
                return  # the verdict says that it has not ended

    async def _wait_no_process(self, plan: RunPlan) -> None:
        family = (plan.name, *self.children(plan.name))
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline and any(map(self.hand.alive, family)):
            await asyncio.sleep(0.1)
        lost = [one for one in self.hand.containers.values() if one.run in family and one.is_lost]
        for one in lost:
            if one.is_alive:
                await one.ended.wait()

    async def _settle(self) -> None:
        """Wait until finished runs have no pods that run."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            try:
                pods = [raw async for page in self.api.list_pages(PODS, self.namespace) for raw in page]
            except ApiError:
                pods = []
                await asyncio.sleep(0.5)
                continue
            running = [raw["metadata"]["name"] for raw in pods if raw["status"].get("phase") in ("Pending", "Running")]
            if not running:
                return
            if time.monotonic() > deadline:
                self.result.violations["pods"] = [f"runs have ended and pods are left: {running}"]
                return
            await asyncio.sleep(0.3)

    # ------------------------------------------------------------ the verdict

    def next_strike(self, run: str) -> Strike | None:
        uid = self.witness.newest[run]["metadata"]["uid"] if run in self.witness.newest else ""
        try:
            entries = self.shelf.read(uid) if uid else ()
            self.marks.setdefault(run, []).append(Mark(len(entries), prefix_digest(entries, len(entries))))
        except ShelfAway:
            pass  # one look less at a journal that will be looked at again
        if run not in self.strikes:  # a child of one of the runs
            self.strikes[run] = child_strikes(self.show.seed, run, is_brisk=self.show.is_brisk)
        strikes = self.strikes[run]
        return strikes.pop(0) if strikes and not self.is_calm else None

    async def _read_journal(self, name: str) -> Sequence[RawEntry]:
        uid = self.witness.newest[name]["metadata"]["uid"]
        while True:
            try:
                return self.shelf.read(uid)
            except ShelfAway:
                await asyncio.sleep(0.2)

    def children(self, name: str) -> list[str]:
        """Return the runs that a run has asked for."""
        found = []
        for child, raw in self.witness.newest.items():
            owners = raw["metadata"].get("ownerReferences", ())
            if any(owner["kind"] == "AgentRun" and owner["name"] == name for owner in owners):
                found.append(child)
        return found

    async def evidence(self, plan: RunPlan, name: str) -> Evidence:
        """Return what was seen of a run of a plan: its own, or a child's."""
        is_child = name != plan.name
        who = self.witness.newest[name]["spec"].get("input", {}).get("who", name)
        lines = [json.loads(line) for line in self.tools.log_path.read_text().splitlines()]
        containers = [one for one in self.hand.containers.values() if one.run == name]
        return Evidence(
            name,
            await self._read_journal(name),
            self.witness.sights[name],
            [line for line in lines if line["run"] == who],
            [
                Process(
                    one.attempt, one.started_at, one.ended_at, one.code, one.blow, one.is_lost, log_lines(one.folder)
                )
                for one in containers
                if one.process is not None or self.show.level == "node"
            ],
            self.marks.get(name, ()),
            plan.token_budget if not is_child and not any(deed.limits for deed in plan.deeds) else None,
            3 if is_child else plan.max_attempts,
            plan.tools,
        )

    async def _judge(self, plan: RunPlan) -> None:
        for name in (plan.name, *self.children(plan.name)):
            seen = await self.evidence(plan, name)
            found = judge(seen)
            self.result.executions += sum(line["what"] == "executed" for line in seen.done)
            final = seen.final
            kind = "" if name == plan.name else "child "
            self.result.ends[f"{kind}{final.get('phase')}/{(final.get('exit') or {}).get('reason')}"] += 1
            if found:
                self.result.violations[name] = found
                self._tell_story(plan, seen, found)

    def _tell_story(self, plan: RunPlan, seen: Evidence, found: list[str]) -> None:
        folder = self.folder / "stories" / seen.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "violations.txt").write_text("\n".join(found) + "\n")
        (folder / "journal.jsonl").write_text("".join(json.dumps(dict(entry)) + "\n" for entry in seen.journal))
        shown = [{"at": sight.at, "alive": sight.alive, **sight.status} for sight in seen.sights]
        (folder / "statuses.jsonl").write_text("".join(json.dumps(sight) + "\n" for sight in shown))
        (folder / "tools.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seen.done))
        (folder / "object.json").write_text(json.dumps(self.witness.newest[seen.name], indent=1))
        (folder / "plan.yaml").write_text(yaml.safe_dump([plan.workflow, plan.run], sort_keys=False))
        struck = [blow for blow in self.hand.struck if blow["run"] == seen.name]
        processes = [replace(process, lines=()) for process in seen.processes]
        drawn = [strike.to_raw() for strike in plan.strikes]
        told = {"drawn": drawn, "struck": struck, "processes": [repr(process) for process in processes]}
        (folder / "kills.json").write_text(json.dumps(told, indent=1))
        for one in self.hand.containers.values():
            if one.run == seen.name and (one.folder / "log").exists():
                (folder / f"{one.folder.name}.log").write_bytes((one.folder / "log").read_bytes())
        self.say(f"VIOLATION in {seen.name}, its story is in {folder}:")
        for line in found:
            self.say(f"  {line[:500]}")
        self.say(f"  again: {replay_command(self.show, plan.number)}")

    def _judge_services(self) -> None:
        self.services.keep_logs(self.folder)
        self.result.drift = self.services.drift()
        faults = [*self.hand.faults, *self.services.faults()]
        if faults:
            self.result.violations["services"] = faults
            for line in faults[:20]:
                self.say(f"FAULT: {line[:600]}")
        self.result.kills = self.hand.kills + self.trouble.kills

    async def _talk(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(10.0)
            kills = self.hand.kills + self.trouble.kills
            live = len(self.plans) - sum(n for end, n in self.result.ends.items() if not end.startswith("child"))
            self.say(
                f"{time.monotonic() - began:5.0f} s  {kills.total():4} kills ({listed(kills)})  "
                f"{self.result.ends.total():3} ended, {live} live ({listed(self.result.ends)})"
            )


def listed(counted: Counter[str]) -> str:
    return " ".join(f"{name} {number}" for name, number in sorted(counted.items())) or "none"


def log_lines(folder: Path) -> tuple[Raw, ...]:
    found: list[Raw] = []
    path = folder / "log"
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append({"event": "runner.fault" if "Traceback" in line else "text", "text": line})
    return tuple(found)


def replay_command(show: Show, number: int) -> str:
    return f"make chaos LEVEL={show.level} SEED={show.seed} ONLY={number} KILLS={show.kills}"
