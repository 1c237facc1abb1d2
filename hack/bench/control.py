#!/usr/bin/env python3
"""`make bench-control`: how fast people steer, and what it costs the operator to watch; on a real API server.

The control plane, an operator and Redis are real processes; hack/bench/control_cell.py plays pods and runners.

Landing: so many runs live at once, each with its engine, its run store over TLS and its journal in Redis, several to a
process. Steer messages are patched at random moments. A directive can land at the first turn boundary after the API
server has taken it; a boundary is where the last call of a turn ended. What is taken is how much later it landed, by
the journal (the target is about that), how much later the model was called with it, and how much later a watch of the
object shows that it landed. `starved` is how much of the time in which the runners wanted a processor they had none:
where it is high, the figures tell of the machine.

Watching: 1,000 live runs under four supervisors; their snapshots come from a process of its own at a given rate, and
one run in twenty gives a rule cause to steer it. What is taken is the operator's: processor and memory by /proc, its
requests by its own metrics.

Prints progress and tables, writes all figures as JSON, and exits with 1 when a target of operations.md is missed.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peers import cache_folder

from chaos.mirror import Mirror
from integration.operator.stage import OperatorProcess, Stage, eventually, make_namespace, prepare_cluster
from pilothouse_api import names
from pilothouse_engine.facts import CallFinished, ModelStarted, SteerAnswered, decode_all
from pilothouse_kubernetes.client import AGENTRUNS, CONFIGMAPS, SUPERVISORS, WORKFLOWS, KubernetesClient, Raw
from pilothouse_kubernetes.connection import Connection, find_credentials
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_journal import RedisJournal
from support.cluster import LocalCluster, entered, fresh_cluster
from support.redis_server import RedisServer

TURN_SECONDS = {1: 0.3, 50: 4.0, 200: 10.0}
"""Mean length of a turn by the number of live runs: the machine shall have time left, as one with models behind it."""
RUNS_A_PROCESS = 50
PATCHES_A_SECOND = 10.0
MOST_TURNS = 900
LANDED_P50, LANDED_P99 = 0.020, 0.100
EMPTY_MEMORY, LIVE_MEMORY = 100.0, 150.0
"""MiB (operations.md §4)."""
PATIENCE_SECONDS = 600.0
SETTLE_SECONDS = 5.0

MOST_WAITED_PERCENT = 50.0
LONG_LEASE = {"LEASE_SECONDS": "300", "RENEW_SECONDS": "240"}
"""It has no rival, and a machine that is busy with others must not end it."""

TICKS = os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@dataclass(frozen=True)
class Target:
    """One target, and what was measured; `unit` is `ms` or `MiB`."""

    what: str
    measured: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.measured <= self.limit


# ---------------------------------------------------------------- the stage


def script(turn_seconds: float, turns: int = MOST_TURNS) -> Raw:
    """Return a ConfigMap with the script of a model whose turns take about so long."""
    dice = random.Random(turn_seconds)
    entries = [
        {
            "toolCalls": [{"name": "look", "arguments": {"at": f"s{turn}"}}],
            "usage": {"input": 800, "output": 100},
            "delaySeconds": round(turn_seconds * dice.uniform(0.5, 1.5), 3),
        }
        for turn in range(turns)
    ]
    data = {"script": json.dumps({"turns": entries})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": data}


def walking(name: str) -> Raw:
    """Return a workflow that plays the script, with one call of a tool that only reads in each turn."""
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    agent = {
        "mode": "Autonomous",
        "model": {
            "name": "scripted",
            "maxOutputTokens": 100,
            "script": {"configMapKeyRef": {"name": "script", "key": "script"}},
        },
        "steering": {"inline": "Look at everything."},
        "limits": {"maxIterations": MOST_TURNS + 1, "maxToolCalls": MOST_TURNS + 1, "tokenBudget": 100_000_000},
        "tools": [{"name": "look", "description": "Looks.", "step": "look", "parameters": parameters}],
    }
    look = {"id": "look", "kind": "Router", "description": "Looks.", "toolOnly": True, "router": {"match": "at"}}
    spec = {"steps": [{"id": "talk", "kind": "Agent", "agent": agent}, look]}
    return {"apiVersion": names.API_VERSION, "kind": "Workflow", "metadata": {"name": name}, "spec": spec}


@dataclass
class Bench:
    """One control plane, with what all measurements need of it."""

    cluster: LocalCluster
    connection: Connection
    folder: Path
    operator_kubeconfig: Path
    redis: RedisServer
    cells: list[subprocess.Popen[str]] = field(default_factory=list)

    @asynccontextmanager
    async def staged(self, namespace: str) -> AsyncIterator[tuple[Stage, OperatorProcess]]:
        """Give a namespace of its own with an operator that watches it, and end both's processes afterwards."""
        api = KubernetesClient(self.connection)
        folder = self.folder / namespace
        folder.mkdir()
        await make_namespace(api, namespace)
        stage = Stage(api, self.cluster, namespace, self.operator_kubeconfig, folder)
        operator = stage.operator(REDIS_URL="redis://bench:6379", WORKERS="8", **LONG_LEASE)
        try:
            await operator.start()
            yield stage, operator
            if operator.faults():
                raise RuntimeError(f"the operator had faults: {operator.faults()[:3]}")
        finally:
            for cell in self.cells:
                cell.kill()
                cell.wait()
            self.cells.clear()
            await operator.stop()

    def start_cell(self, part: str, stage: Stage, *options: str) -> subprocess.Popen[str]:
        """Start a process of the data plane."""
        program = Path(__file__).with_name("control_cell.py")
        folder = Path(tempfile.mkdtemp(dir=stage.folder))
        command = [sys.executable, program, part, self.cluster.name, stage.namespace, folder, *options]
        cell = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.cells.append(cell)
        return cell

    async def make_runs(self, stage: Stage, count: int) -> None:
        """Make runs and wait until all are Running."""
        for first in range(0, count, 20):
            await asyncio.gather(
                *(stage.apply_run(f"r{number:04}", "walking") for number in range(first, min(first + 20, count)))
            )

        async def are_running() -> bool:
            runs = await stage.runs()
            running = sum(run.get("status", {}).get("phase") == "Running" for run in runs)
            say(f"  {running} of {count} runs live")
            await asyncio.sleep(1)
            return running == count

        await eventually(are_running, PATIENCE_SECONDS)

    def check_cells(self) -> None:
        """Raise where a process of the data plane has ended by itself."""
        for cell in self.cells:
            if cell.poll() not in (None, 0):
                raise RuntimeError(f"a process of the data plane has ended with {cell.returncode}")


@dataclass(frozen=True)
class Reading:
    """What the operator has used until a moment: processor seconds, MiB resident, and requests by method."""

    at: float
    processor: float
    memory: float
    requests: dict[str, float]
    metrics: str

    @property
    def looks(self) -> float:
        """How often it has looked at a run; each time all its supervisors are evaluated."""
        found = re.findall(r'^pilothouse_operator_reconciles_total{kind="AgentRun",.*} (\S+)$', self.metrics, re.M)
        return sum(map(float, found))


async def read_operator(operator: OperatorProcess) -> Reading:
    """Read /proc and the operator's metrics."""
    assert operator.process is not None
    if operator.process.returncode is not None:
        raise RuntimeError(f"the operator has ended with {operator.process.returncode}: {operator.log()[-500:]}")
    processor, memory = read_process(operator.process.pid)
    at = time.monotonic()
    _, metrics = await operator.get("/metrics")
    requests: dict[str, float] = {}
    for method, value in re.findall(r'api_requests_total{code="2\d\d",method="(\w+)"} (\S+)', metrics):
        requests[method] = requests.get(method, 0.0) + float(value)
    return Reading(at, processor, memory, requests, metrics)


def read_schedule(processes: Sequence[subprocess.Popen[str]]) -> tuple[float, float]:
    """Return how long processes have run, and how long they have waited for a processor, in seconds."""
    both = [Path(f"/proc/{one.pid}/schedstat").read_text().split() for one in processes]
    return sum(int(one[0]) for one in both) / 1e9, sum(int(one[1]) for one in both) / 1e9


def read_process(pid: int) -> tuple[float, float]:
    """Return the processor seconds of a process and its resident MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert resident is not None
    return (int(fields[11]) + int(fields[12])) / TICKS, int(resident[1]) / 1024


# ---------------------------------------------------------------- landing


@dataclass(frozen=True)
class Directive:
    """One steer message: when its patch was sent, and when the API server had taken it."""

    run: str
    id: str
    sent: float
    taken: float


@dataclass(frozen=True)
class Landing:
    """Seconds of one directive: of the patch itself, and from where it could land to each thing that follows."""

    patch: float
    landed: float
    called: float
    shown: float


WHAT = ("patch", "landed", "called", "shown")


@dataclass(frozen=True)
class LandingFigures:
    """Milliseconds; of `runs` live runs."""

    runs: int
    turn_seconds: float
    turns_a_second: float
    samples: int
    patch_p50: float
    patch_p99: float
    landed_p50: float
    landed_p99: float
    called_p50: float
    called_p99: float
    shown_p50: float
    shown_p99: float
    runner_ms_a_turn: float
    waited_percent: float
    operator_processor_percent: float
    operator_memory: float


class Shown:
    """What a watch of the runs has shown: which messages had landed, and when."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, str], float] = {}
        self.turns: dict[str, int] = {}

    def notice(self, kind: str, raw: Raw) -> None:
        """Take an event of a run."""
        now, run = time.time(), raw["metadata"]["name"]
        snapshot = raw.get("status", {}).get("run") or {}
        self.turns[run] = snapshot.get("turn", 0)
        for steer in (snapshot.get("control") or {}).get("steer") or ():
            self.at.setdefault((run, steer), now)


async def steer_at_random(stage: Stage, shown: Shown, count: int, samples: int, dice: random.Random) -> list[Directive]:
    """Patch messages at random moments into runs that have none open; return when all have landed."""
    directives: list[Directive] = []
    newest: dict[str, str] = {}

    def is_open(run: str) -> bool:
        return run in newest and (run, newest[run]) not in shown.at

    while len(directives) < samples:
        free = [f"r{number:04}" for number in range(count) if not is_open(f"r{number:04}")]
        if not free:
            await asyncio.sleep(0.01)
            continue
        run, steer = dice.choice(free), f"s{len(directives)}"
        old = {newest[run]: None} if run in newest else {}
        sent = time.time()
        message = {"message": "Mind the time.", "by": None}
        await stage.control(run, steer={steer: message, **old})
        directives.append(Directive(run, steer, sent, time.time()))
        newest[run] = steer
        if len(directives) % 50 == 0:
            say(f"  {len(directives)} of {samples} messages sent")
        await asyncio.sleep(dice.expovariate(PATCHES_A_SECOND))

    async def have_landed() -> bool:
        return not any(is_open(run) for run in newest)

    await eventually(have_landed, PATIENCE_SECONDS)
    return directives


@dataclass(frozen=True)
class Journal:
    """When the turns of a run ended, when its model was called, and when each message landed."""

    boundaries: tuple[float, ...]
    calls: tuple[float, ...]
    landed: dict[str, float]


async def read_journal(bench: Bench, stage: Stage, run: Raw) -> Journal:
    """Return what the journal of a run tells."""
    client = RedisClient(parse_address(bench.redis.url))
    try:
        prefix = names.redis_run_prefix(stage.namespace, run["metadata"]["uid"])
        facts = list(decode_all(await RedisJournal(client, prefix).read()))
    finally:
        await client.aclose()
    return Journal(
        tuple(fact.at for fact in facts if isinstance(fact, CallFinished)),
        tuple(fact.at for fact in facts if isinstance(fact, ModelStarted)),
        {fact.id: fact.at for fact in facts if isinstance(fact, SteerAnswered)},
    )


def judge(directive: Directive, journal: Journal, shown_at: float) -> Landing:
    """Return how much later than it could a message has landed.

    It can land at the first boundary after the API server has taken it, and did perhaps at one just before: then what
    counts is the later one of that boundary and of the moment when the patch was sent.
    """
    landed_at = journal.landed[directive.id]
    earliest = next((at for at in journal.boundaries if at >= directive.taken), float("inf"))
    if earliest > landed_at:
        before = max((at for at in journal.boundaries if at <= landed_at), default=0.0)
        earliest = max(before, directive.sent)
    called_at = next((at for at in journal.calls if at >= landed_at), shown_at)
    since = [at - earliest for at in (landed_at, called_at, shown_at)]
    return Landing(directive.taken - directive.sent, *since)


async def measure_landing(bench: Bench, count: int, samples: int) -> LandingFigures:
    """Measure at so many live runs."""
    turn_seconds = TURN_SECONDS.get(count, max(0.3, count / 50))
    say(f"landing: {count} live runs, turns of about {turn_seconds} s")
    async with bench.staged(f"landing-{count}") as (stage, operator):
        await stage.api.create(CONFIGMAPS, stage.namespace, script(turn_seconds))
        await stage.api.create(WORKFLOWS, stage.namespace, walking("walking"))
        processes = -(-count // RUNS_A_PROCESS)
        for number in range(1, processes + 1):
            bench.start_cell("runners", stage, "--redis", bench.redis.url, "--share", f"{number}/{processes}")
        await bench.make_runs(stage, count)
        shown = Shown()
        watch = asyncio.get_running_loop().create_task(
            Mirror(bench.connection, AGENTRUNS, stage.namespace, shown.notice).follow()
        )
        try:

            async def all_walk() -> bool:
                bench.check_cells()
                return len(shown.turns) == count and all(shown.turns.values())

            await eventually(all_walk, PATIENCE_SECONDS)
            before, began = await read_operator(operator), time.time()
            runners = read_schedule(bench.cells)
            directives = await steer_at_random(stage, shown, count, samples, random.Random(count))
            after, ended = await read_operator(operator), time.time()
            runners = tuple(now - then for now, then in zip(read_schedule(bench.cells), runners, strict=True))
        finally:
            watch.cancel()
        runs = {run["metadata"]["name"]: run for run in await stage.runs()}
        journals = {name: await read_journal(bench, stage, run) for name, run in runs.items()}
        landings = [judge(one, journals[one.run], shown.at[one.run, one.id]) for one in directives]
    span = after.at - before.at
    turns = sum(began <= at <= ended for journal in journals.values() for at in journal.boundaries)
    spread = {
        f"{what}_p{percent}": 1000 * percentile([getattr(landing, what) for landing in landings], percent)
        for what in WHAT
        for percent in (50, 99)
    }
    used = 100 * (after.processor - before.processor) / span
    return LandingFigures(
        count,
        turn_seconds,
        turns / span,
        len(landings),
        **spread,
        runner_ms_a_turn=1000 * runners[0] / max(1, turns),
        waited_percent=100 * runners[1] / max(0.001, sum(runners)),
        operator_processor_percent=used,
        operator_memory=after.memory,
    )


# ---------------------------------------------------------------- watching


def supervisors() -> list[Raw]:
    """Return four supervisors of all runs, with rules of every kind; one of them has cause to act, now and then."""
    specs: dict[str, Raw] = {
        "spend": {
            "rules": [
                {"name": "nearly-spent", "when": "BudgetFraction", "budgetFraction": {"percent": 90}},
                {"name": "far-in", "when": "IterationReached", "iterationReached": {"count": 900}, "then": "Steer"},
            ]
        },
        "tools": {
            "rules": [
                {"name": "often", "when": "ToolRepeated", "toolRepeated": {"tool": "look", "count": 5000}},
                {"name": "undeclared", "when": "UndeclaredToolCalled", "then": "Abort"},
            ]
        },
        "stuck": {
            "rules": [
                {"name": "same-again", "when": "IdenticalCallRepeated", "identicalCallRepeated": {"count": 3}}
                | {"then": "Steer"},
                {"name": "silent", "when": "NoProgressFor", "noProgressFor": {"seconds": 86400}},
            ]
        },
        "written": {
            "rules": [
                {
                    "name": "errors",
                    "when": "Expression",
                    "expression": {"cel": "run.toolErrors * 4 > run.iteration + 40"},
                },
                {
                    "name": "costly",
                    "when": "Expression",
                    "expression": {"cel": "run.spend.used > 90000000 && run.toolCalls.exists(tool, tool == 'look')"},
                },
            ]
        },
    }
    return [
        {
            "apiVersion": names.API_VERSION,
            "kind": "Supervisor",
            "metadata": {"name": name},
            "spec": {"selector": {}, "onViolation": "Pause", **spec},
        }
        for name, spec in specs.items()
    ]


@dataclass(frozen=True)
class WatchingFigures:
    """What the operator used while `snapshots_a_second` came of `runs` live runs; `written` by whoever plays them."""

    runs: int
    supervisors: int
    wanted_a_second: float
    snapshots_a_second: float
    evaluations_a_second: float
    processor_percent: float
    processor_ms_a_snapshot: float
    memory: float
    writes_a_second: float
    writes_a_snapshot: float
    actions: int
    act_p50: float
    act_p99: float


class Acts:
    """When each run had a steer message of a supervisor in its spec, and when its cause was shown (milliseconds)."""

    def __init__(self) -> None:
        self.caused: dict[str, float] = {}
        self.steered: dict[str, float] = {}

    def notice(self, kind: str, raw: Raw) -> None:
        """Take an event of a run."""
        now, run = time.monotonic(), raw["metadata"]["name"]
        snapshot = raw.get("status", {}).get("run") or {}
        if (snapshot.get("visitCounts") or {}).get("identicalCalls", 0) >= 3:
            self.caused.setdefault(run, now)
        if ((raw.get("spec", {}).get("control") or {}).get("steer")) and run not in self.steered:
            self.steered[run] = now

    def delays(self) -> list[float]:
        """Return how long each took."""
        return [1000 * (self.steered[run] - at) for run, at in self.caused.items() if run in self.steered]


async def measure_watching(
    bench: Bench, count: int, rates: Sequence[float], seconds: float
) -> tuple[float, float, list[WatchingFigures]]:
    """Return the operator's memory empty and with all runs live, and its figures at each rate."""
    say(f"watching: {count} live runs under {len(supervisors())} supervisors")
    async with bench.staged("watching") as (stage, operator):
        await asyncio.sleep(SETTLE_SECONDS)
        empty = (await read_operator(operator)).memory
        say(f"  an empty operator has {empty:.0f} MiB")
        await stage.api.create(CONFIGMAPS, stage.namespace, script(1.0, turns=30))
        await stage.api.create(WORKFLOWS, stage.namespace, walking("walking"))
        for body in supervisors():
            await stage.api.create(SUPERVISORS, stage.namespace, body)
        for number in (1, 2):
            bench.start_cell("runners", stage, "--share", f"{number}/2")
        await bench.make_runs(stage, count)
        await asyncio.sleep(SETTLE_SECONDS)
        live = (await read_operator(operator)).memory
        say(f"  with {count} live runs it has {live:.0f} MiB")
        acts = Acts()
        mirror = Mirror(bench.connection, AGENTRUNS, stage.namespace, acts.notice)
        watch = asyncio.get_running_loop().create_task(mirror.follow())
        figures, turn = [], 1
        try:
            for rate in rates:
                one, turn = await _watch_at(bench, stage, operator, acts, rate, seconds, turn, count)
                figures.append(one)
        finally:
            watch.cancel()
    return empty, max(live, *(one.memory for one in figures)), figures


async def _watch_at(
    bench: Bench,
    stage: Stage,
    operator: OperatorProcess,
    acts: Acts,
    rate: float,
    seconds: float,
    turn: int,
    count: int,
) -> tuple[WatchingFigures, int]:
    say(f"  {rate:g} snapshots a second for {seconds:g} s")
    acted = len(acts.steered)
    before = await read_operator(operator)
    options = ("--rate", str(rate), "--seconds", str(seconds), "--start", str(turn))
    cell = bench.start_cell("snapshots", stage, *options)
    said, _ = await asyncio.to_thread(cell.communicate)
    if cell.returncode != 0:
        raise RuntimeError(f"the snapshots ended with {cell.returncode}")
    after = await read_operator(operator)
    written, next_turn, took = said.split()
    snapshots, span = int(written), float(took)  # the start of the process that writes them is left out
    processor = after.processor - before.processor
    writes = sum(after.requests.get(it, 0) - before.requests.get(it, 0) for it in ("POST", "PATCH", "PUT", "DELETE"))
    evaluated = len(supervisors()) * (after.looks - before.looks)
    await asyncio.sleep(SETTLE_SECONDS)
    delays = acts.delays()[acted:] or [0.0]
    figures = WatchingFigures(
        runs=count,
        supervisors=len(supervisors()),
        wanted_a_second=rate,
        snapshots_a_second=snapshots / span,
        evaluations_a_second=evaluated / span,
        processor_percent=100 * processor / span,
        processor_ms_a_snapshot=1000 * processor / snapshots,
        memory=after.memory,
        writes_a_second=writes / span,
        writes_a_snapshot=writes / snapshots,
        actions=len(acts.steered) - acted,
        act_p50=percentile(delays, 50),
        act_p99=percentile(delays, 99),
    )
    return figures, int(next_turn) + 1


# ---------------------------------------------------------------- the report


def print_landing(figures: Sequence[LandingFigures]) -> None:
    """Print the first table."""
    print("\npatch → landed beyond the turn boundary, ms (p50 / p99)")
    print(
        f"{'runs':>5} {'turn':>6} {'turns/s':>8} {'samples':>8} {'patch taken':>16} {'landed':>16} {'model called':>16}"
        f" {'shown':>16} {'starved':>8}"
    )
    for one in figures:
        cells = [f"{getattr(one, f'{what}_p50'):.1f} / {getattr(one, f'{what}_p99'):.1f}" for what in WHAT]
        print(
            f"{one.runs:5} {one.turn_seconds:5.1f}s {one.turns_a_second:8.1f} {one.samples:8}"
            f"{''.join(f' {cell:>16}' for cell in cells)} {one.waited_percent:7.0f}%",
            flush=True,
        )


def say_starved(figures: Sequence[LandingFigures]) -> None:
    """Say where the runners have waited for a processor more than they have run: figures then tell of the machine."""
    for one in figures:
        if one.waited_percent > MOST_WAITED_PERCENT:
            print(
                f"{one.runs} live runs: their processes had no processor for {one.waited_percent:.0f} % of the time in"
                " which they wanted one; measure on a machine that has nothing else to do"
            )


def print_watching(empty: float, figures: Sequence[WatchingFigures]) -> None:
    """Print the second table."""
    first = figures[0]
    print(f"\nthe operator, {first.runs:,} live runs under {first.supervisors} supervisors; empty {empty:.0f} MiB")
    print(
        f"{'snapshots/s':>11} {'evaluations/s':>13} {'CPU':>6} {'ms/snapshot':>11} {'memory':>9} {'writes/s':>8}"
        f" {'actions':>7} {'cause → patch, ms':>18}"
    )
    for one in figures:
        print(
            f"{one.snapshots_a_second:11.1f} {one.evaluations_a_second:13.1f} {one.processor_percent:5.1f}%"
            f" {one.processor_ms_a_snapshot:11.2f} {one.memory:5.0f} MiB {one.writes_a_second:8.2f}"
            f" {one.actions:7} {one.act_p50:8.0f} / {one.act_p99:.0f}"
        )


def print_targets(targets: Sequence[Target]) -> bool:
    """Print whether each target holds; return whether all do."""
    print()
    for target in targets:
        said = "kept" if target.is_met else "MISSED"
        print(f"{target.what}: {target.measured:.1f} {target.unit}, at most {target.limit:.0f}: {said}")
    return all(target.is_met for target in targets)


async def run_bench(cluster: LocalCluster, given: argparse.Namespace) -> bool:
    """Measure what is asked for, print it, and write it down."""
    result: dict[str, Any] = {"machine": {"processors": os.cpu_count(), "load": os.getloadavg()}}
    print(f"{os.cpu_count()} processors; {os.getloadavg()[0]:.1f} processes wanted one in the minute before")
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as text:
        folder = Path(text)
        (folder / "redis").mkdir()
        redis = RedisServer(folder / "redis").start()
        connection = Connection(find_credentials(str(cluster.kubeconfig)))
        bench = Bench(cluster, connection, folder, await prepare_cluster(cluster, folder), redis)
        try:
            if given.part in ("all", "landing"):
                landing = []
                for count in given.runs:
                    landing.append(await measure_landing(bench, count, given.samples))
                    print_landing(landing)
                say_starved(landing)
                result["landing"] = [asdict(one) for one in landing]
                for one in landing:
                    what = f"landed beyond the turn boundary, {one.runs} live runs"
                    targets.append(Target(f"{what}, p50", one.landed_p50, 1000 * LANDED_P50, "ms"))
                    targets.append(Target(f"{what}, p99", one.landed_p99, 1000 * LANDED_P99, "ms"))
            if given.part in ("all", "watching"):
                empty, live, watching = await measure_watching(bench, given.watched, given.rates, given.seconds)
                print_watching(empty, watching)
                result["watching"] = {"empty": empty, "live": live, "rates": [asdict(one) for one in watching]}
                targets.append(Target("operator, empty", empty, EMPTY_MEMORY, "MiB"))
                targets.append(Target(f"operator, {given.watched:,} live runs", live, LIVE_MEMORY, "MiB"))
        finally:
            await connection.close()
            redis.close()
    is_met = print_targets(targets)
    result["targets"] = [{**asdict(target), "isMet": target.is_met} for target in targets]
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nall figures: {given.json}")
    return is_met


def numbers(text: str) -> list[int]:
    """Return the numbers of a text with commas."""
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Take the figures on a fresh control plane."""
    parser = argparse.ArgumentParser(prog="bench-control", description=__doc__)
    parser.add_argument("--part", choices=("all", "landing", "watching"), default="all")
    parser.add_argument("--runs", type=numbers, default=[1, 50, 200], help="live runs while messages land")
    parser.add_argument("--samples", type=int, default=300, help="messages for each")
    parser.add_argument("--watched", type=int, default=1000, help="live runs that are watched")
    parser.add_argument("--rates", type=numbers, default=[20, 50, 100], help="snapshots a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long at each rate")
    parser.add_argument("--json", type=Path, default=cache_folder() / "bench-control.json")
    given = parser.parse_args()
    say("starting a control plane")
    with fresh_cluster("control-plane", "bench") as cluster, entered(cluster):
        return 0 if asyncio.run(run_bench(cluster, given)) else 1


if __name__ == "__main__":
    sys.exit(main())
