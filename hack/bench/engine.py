#!/usr/bin/env python3
"""`make bench-engine`: what the engine costs for each turn, bare and guarded, beside LangGraph, pydantic-ai and more.

Every cell is a fresh process; the cells of a round follow each other, so that a busy moment of the machine hits all
loops alike. Loops in memory are compared by processor time, which on an idle machine is the same as the wall's and
does not count what neighbours take; durable ones by the wall's, since a flush is waiting. They write to the cache
folder, a real disk: on a tmpfs a flush costs nothing. Exits with 1 when a target is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine_cell import LOOPS, PEERS
from peers import cache_folder, ensure_peers

TURNS = (10, 50, 200)
RUNS = {10: 15, 50: 7, 200: 3}
CELL_TIMEOUT_SECONDS = 300
MOST_OF_PEER = 0.25
MOST_GROWTH = 1.25
"""What "flat" means: a turn of 200 costs at most a quarter more than a turn of 10."""
IN_MEMORY = {"pilothouse": "", "pilothouse-guarded": " with guardrails and policy"}
"""Our loops that are compared with the peers' bare ones, and how they are called."""
DURABLE = {"pilothouse-file": "File journal", "pilothouse-redis": "Redis journal"}
"""Our loops that are compared with the durable peer, and how they are called."""
IN_MEMORY_PEERS = ("langgraph", "pydantic-ai", "openai-agents")


@dataclass(frozen=True, slots=True)
class Cell:
    """Medians over the rounds."""

    wall: float
    processor: float
    bytes_a_turn: float


@dataclass(frozen=True, slots=True)
class Target:
    """One target of operations.md §4, and what was measured."""

    what: str
    measured: float
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


def measure(loops: list[str], rounds: int) -> dict[tuple[str, int], Cell]:
    peers_python = ensure_peers()
    results: dict[tuple[str, int], list[dict[str, float]]] = {}
    for number in range(rounds):
        for turns in TURNS:
            for loop in loops:
                print(f"round {number + 1} of {rounds}: {loop}, {turns} turns", file=sys.stderr)
                results.setdefault((loop, turns), []).append(run_cell(loop, turns, peers_python))
    return {
        key: Cell(*(statistics.median(result[figure] for result in cells) for figure in ("wall", "processor", "bytes")))
        for key, cells in results.items()
    }


def judge(cells: dict[tuple[str, int], Cell]) -> list[Target]:
    first, last = TURNS[0], TURNS[-1]
    best = {turns: min(cells[peer, turns].processor for peer in IN_MEMORY_PEERS) for turns in TURNS}
    targets = [
        Target(
            f"in memory{what}, {turns} turns: part of the best peer",
            cells[loop, turns].processor / best[turns],
            MOST_OF_PEER,
        )
        for loop, what in IN_MEMORY.items()
        for turns in TURNS
    ]
    targets += [
        Target(
            f"{what}, {turns} turns: part of LangGraph with SQLite",
            cells[loop, turns].wall / cells["langgraph-sqlite", turns].wall,
            MOST_OF_PEER,
        )
        for loop, what in DURABLE.items()
        for turns in TURNS
    ]
    return [
        *targets,
        *(
            Target(
                f"in memory{what}, {last} turns: times {first}",
                cells[loop, last].processor / cells[loop, first].processor,
                MOST_GROWTH,
            )
            for loop, what in IN_MEMORY.items()
        ),
        *(
            Target(
                f"{what}, bytes a turn, {last} turns: times {first}",
                cells[loop, last].bytes_a_turn / cells[loop, first].bytes_a_turn,
                MOST_GROWTH,
            )
            for loop, what in DURABLE.items()
        ),
    ]


def print_tables(cells: dict[tuple[str, int], Cell], loops: list[str]) -> None:
    print_table("Microseconds a turn, wall (median)", loops, lambda key: cells[key].wall)
    print_table("Microseconds a turn, processor (median)", loops, lambda key: cells[key].processor)
    durable = [loop for loop in loops if loop in (*DURABLE, "langgraph-sqlite")]
    print_table("Bytes written a turn", durable, lambda key: cells[key].bytes_a_turn)


def print_table(title: str, loops: list[str], figure: Callable[[tuple[str, int]], float]) -> None:
    print(f"\n{title}\n{'turns':<18}" + "".join(f"{turns:>11}" for turns in TURNS))
    for loop in loops:
        print(f"{loop:<18}" + "".join(f"{figure((loop, turns)):>11,.0f}" for turns in TURNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes for each cell (default 3)")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS), help="only these, without targets")
    arguments = parser.parse_args()
    cells = measure(arguments.loops, arguments.rounds)
    print_tables(cells, arguments.loops)
    if set(arguments.loops) != set(LOOPS):
        return
    targets = judge(cells)
    print(f"\n{'Target':<72}{'measured':>9}{'at most':>9}")
    for target in targets:
        print(f"{target.what:<72}{target.measured:>9.2f}{target.limit:>9.2f}  {'met' if target.is_met else 'MISSED'}")
    sys.exit(0 if all(target.is_met for target in targets) else 1)


if __name__ == "__main__":
    main()
