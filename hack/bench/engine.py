#!/usr/bin/env python3
"""`make bench-engine`: what the engine costs for each turn, bare and guarded, beside LangGraph, pydantic-ai and more.

Every cell is a fresh process; cells of ours and of the peers take turns, each second round in the opposite order, so
that a busy moment of the machine hits all loops alike. Loops in memory are compared by processor time, which on an idle
machine is the same as the wall's and does not count what neighbours take; durable ones by the wall's, since a flush is
waiting. They write to the cache folder, a real disk: on a tmpfs a flush costs nothing.

Each figure stands there twice: of the least disturbed round, and the median of all. Exits with 1 when a target is
missed by the least disturbed round of each cell, ours and the peers' alike: on a machine that others use too, what
they do only ever adds to a figure, and never the same to two of them; what a loop itself costs is in every round.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_cell import PEERS
from peers import cache_folder, ensure_peers

TURNS = (10, 50, 200)
RUNS = {10: 15, 50: 7, 200: 3}
CELL_TIMEOUT_SECONDS = 300
ROUNDS = 6
MOST_SECONDS = 480.0
"""A round that would end later is not begun."""
MOST_OF_PEER = 0.25
MOST_GROWTH = 1.25
"""What "flat" means: a turn of 200 costs at most a quarter more than a turn of 10."""
IN_MEMORY = {"pilothouse": "", "pilothouse-guarded": " with guardrails and policy"}
"""Our loops that are compared with the peers' bare ones, and how they are called."""
DURABLE = {"pilothouse-file": "File journal", "pilothouse-redis": "Redis journal"}
"""Our loops that are compared with the durable peer, and how they are called."""
IN_MEMORY_PEERS = ("langgraph", "pydantic-ai", "openai-agents")


ORDER = (
    "floor",
    "pilothouse",
    "langgraph",
    "pilothouse-guarded",
    "pydantic-ai",
    "pilothouse-file",
    "langgraph-sqlite",
    "pilothouse-redis",
    "openai-agents",
)
"""The loops of a round: ours and the peers' take turns."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one loop takes a turn: microseconds and bytes."""

    wall: float
    processor: float
    bytes_a_turn: float


Cells = dict[tuple[str, int], Cell]
"""By loop and number of turns."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all rounds: of the least disturbed one of each cell, and the median."""

    least: Cells
    median: Cells


@dataclass(frozen=True, slots=True)
class Target:
    """One target of operations.md §4, and what was measured: by the least disturbed rounds, and by the median."""

    what: str
    measured: float
    median: float
    limit: float

    @property
    def is_met(self) -> bool:
        return self.measured <= self.limit


def run_cell(loop: str, turns: int, peers_python: Path) -> dict[str, float]:
    python = peers_python if loop in PEERS else Path(sys.executable)
    data = cache_folder() / "bench-data"
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        command = [python, Path(__file__).with_name("engine_cell.py"), loop, str(turns), str(RUNS[turns]), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CELL_TIMEOUT_SECONDS)
    if done.returncode != 0:
        sys.exit(f"{loop} with {turns} turns failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(loops: list[str], rounds: int) -> Figures:
    peers_python = ensure_peers()
    results: dict[tuple[str, int], list[dict[str, float]]] = {}
    started = time.monotonic()
    for number in range(rounds):
        taken = time.monotonic() - started
        if number and taken * (number + 1) / number > MOST_SECONDS:
            print(f"{number} rounds took {taken:.0f} s: no more", file=sys.stderr)
            break
        for turns in TURNS:
            for loop in loops if number % 2 == 0 else reversed(loops):
                print(f"round {number + 1} of {rounds}: {loop}, {turns} turns", file=sys.stderr)
                results.setdefault((loop, turns), []).append(run_cell(loop, turns, peers_python))
    return Figures(summarize(results, min), summarize(results, statistics.median))


def summarize(results: dict[tuple[str, int], list[dict[str, float]]], of: Callable[[Sequence[float]], float]) -> Cells:
    return {
        key: Cell(*(of([result[figure] for result in cells]) for figure in ("wall", "processor", "bytes")))
        for key, cells in results.items()
    }


def judge(figures: Figures) -> list[Target]:
    medians = dict(ratios(figures.median))
    return [Target(what, measured, medians[what], limit_of(what)) for what, measured in ratios(figures.least)]


def limit_of(what: str) -> float:
    return MOST_GROWTH if f"times {TURNS[0]}" in what else MOST_OF_PEER


def ratios(cells: Cells) -> list[tuple[str, float]]:
    """Return what the targets are about, and how much it is by these figures."""
    first, last = TURNS[0], TURNS[-1]
    best = {turns: min(cells[peer, turns].processor for peer in IN_MEMORY_PEERS) for turns in TURNS}
    return [
        *(
            (f"in memory{what}, {turns} turns: part of the best peer", cells[loop, turns].processor / best[turns])
            for loop, what in IN_MEMORY.items()
            for turns in TURNS
        ),
        *(
            (
                f"{what}, {turns} turns: part of LangGraph with SQLite",
                cells[loop, turns].wall / cells["langgraph-sqlite", turns].wall,
            )
            for loop, what in DURABLE.items()
            for turns in TURNS
        ),
        *(
            (
                f"in memory{what}, {last} turns: times {first}",
                cells[loop, last].processor / cells[loop, first].processor,
            )
            for loop, what in IN_MEMORY.items()
        ),
        *(
            (
                f"{what}, bytes a turn, {last} turns: times {first}",
                cells[loop, last].bytes_a_turn / cells[loop, first].bytes_a_turn,
            )
            for loop, what in DURABLE.items()
        ),
    ]


def print_tables(figures: Figures, loops: list[str]) -> None:
    for kind, cells in (("least disturbed round", figures.least), ("median", figures.median)):
        print_table(f"Microseconds a turn, wall, {kind}", loops, lambda key, cells=cells: cells[key].wall)
        print_table(f"Microseconds a turn, processor, {kind}", loops, lambda key, cells=cells: cells[key].processor)
    durable = [loop for loop in loops if loop in (*DURABLE, "langgraph-sqlite")]
    print_table("Bytes written a turn", durable, lambda key: figures.median[key].bytes_a_turn)


def print_table(title: str, loops: list[str], figure: Callable[[tuple[str, int]], float]) -> None:
    print(f"\n{title}\n{'turns':<18}" + "".join(f"{turns:>11}" for turns in TURNS))
    for loop in loops:
        print(f"{loop:<18}" + "".join(f"{figure((loop, turns)):>11,.0f}" for turns in TURNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"fresh processes for each cell (default {ROUNDS})")
    parser.add_argument("--loops", nargs="+", choices=ORDER, default=list(ORDER), help="only these, without targets")
    arguments = parser.parse_args()
    figures = measure(arguments.loops, arguments.rounds)
    print_tables(figures, arguments.loops)
    if set(arguments.loops) != set(ORDER):
        return
    targets = judge(figures)
    print(f"\n{'Target':<72}{'measured':>9}{'at most':>9}{'':10}{'median':>9}")
    for target in targets:
        said = "met" if target.is_met else "MISSED"
        print(f"{target.what:<72}{target.measured:>9.2f}{target.limit:>9.2f}  {said:<8}{target.median:>9.2f}")
    sys.exit(0 if all(target.is_met for target in targets) else 1)


if __name__ == "__main__":
    main()
