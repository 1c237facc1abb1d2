"""Plays scripts under faults: every point of every script, or a part of them that holds each kind of point.

python -m faults.campaign                      everything, over all processors (`make faults`)
python -m faults.campaign SCRIPT 12:kill,40:late   one play, with its points (`make faults AT="SCRIPT 12:kill"`)
"""

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from faults.invariants import Story, check, compare
from faults.world import FREEZES, LOSABLE, UNAWAITED, Fault, FaultKind, Point, World, read_faults
from golden.script import Script, read_script
from pilothouse_api.structs import Plan

GOLDEN = Path(__file__).parent.parent / "golden" / "transcripts"
OWN = Path(__file__).parent / "scripts"
SEED = 5
FIRST_OF_TWO: tuple[FaultKind, ...] = ("kill", "freeze", "lose")
"""What is played once more with a kill after it."""


@cache
def scripts() -> dict[str, Path]:
    """Return all scripts by their names."""
    found = {str(path.relative_to(GOLDEN).with_suffix("")): path for path in sorted(GOLDEN.rglob("*.yaml"))}
    return found | {f"faults/{path.stem}": path for path in sorted(OWN.glob("*.yaml"))}


@cache
def script_of(name: str) -> Script:
    """Return a script."""
    return read_script(scripts()[name])


@cache
def plan_of(name: str) -> Plan:
    """Return the plan of a script."""
    return script_of(name).plan()


@dataclass(frozen=True, slots=True)
class Case:
    """One play: a script and what goes wrong in it."""

    script: str
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return f"{self.script} {','.join(map(str, self.faults))}"


# ---------------------------------------------------------------- one play


def play(case: Case) -> World:
    """Return the run of a script under faults; raises AssertionError where it does not come to an end."""
    world = World(script_of(case.script), plan_of(case.script), case.faults)
    _loop().run_until_complete(world.play())
    return world


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@cache
def whole(name: str) -> Story:
    """Return the run of a script in which nothing goes wrong."""
    return Story(play(Case(name)))


def judge(case: Case) -> list[str]:
    """Return what is wrong with a run under faults."""
    if not case.faults:
        return check(whole(case.script))
    try:
        story = Story(play(case))
    except AssertionError as error:
        return [f"stuck: {error}"]
    return [*_unlike(story, case), *check(story), *compare(story, whole(case.script))]


def _unlike(story: Story, case: Case) -> Iterator[str]:
    """Yield why a play is not the one that was ordered: up to its first fault it is the whole run."""
    first = case.faults[0].at
    met, want = story.world.points[: first + 1], whole(case.script).world.points[: first + 1]
    if met != want:
        yield "unlike: the play differs from the whole run before anything goes wrong"
    if case.faults[0] not in story.world.met:
        yield f"unlike: nothing met fault {case.faults[0]}"


# ---------------------------------------------------------------- which plays


def kinds_at(point: Point) -> tuple[FaultKind, ...]:
    """Return what can go wrong at a point.

    Beside work that is not waited for only `kill` is played: the others would meet the world that they meet at the next
    point of work that is waited for.
    """
    if point.port in UNAWAITED:
        return ("kill",)
    kinds: tuple[FaultKind, ...] = ("kill", "settle", *FREEZES)
    return (*kinds, "lose") if (point.port, point.method) in LOSABLE else kinds


def cases_of(name: str) -> list[Case]:
    """Return everything that can go wrong once in a script."""
    points = whole(name).world.points
    return [Case(name, (Fault(point.number, kind),)) for point in points for kind in kinds_at(point)]


def second(case: Case, seed: int) -> Case | None:
    """Return a play in which a process is killed some time after a fault, at a point that the seed chooses."""
    first = case.faults[0]
    left = [point.number for point in play(case).points if point.number > first.at]
    if not left:
        return None
    return Case(case.script, (first, Fault(Random(f"{seed} {case}").choice(left), "kill")))


def stratified(seed: int) -> list[Case]:
    """Return one play for each kind of point and each fault that it can meet, from scripts that the seed chooses."""
    strata: dict[tuple[str, FaultKind], list[Case]] = {}
    for name in scripts():
        for point in whole(name).world.points:
            for kind in kinds_at(point):
                is_detailed = kind == "kill"
                stratum = point.kind if is_detailed else f"{point.phase} {point.port}.{point.method}"
                strata.setdefault((stratum, kind), []).append(Case(name, (Fault(point.number, kind),)))
    return [Random(f"{seed} {stratum}").choice(cases) for stratum, cases in sorted(strata.items())]


# ---------------------------------------------------------------- everything


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all plays of a script."""

    script: str
    points: int
    plays: int
    kinds: Counter[str]
    failures: tuple[tuple[str, str], ...]


def play_all(name: str, seed: int) -> Outcome:
    """Play everything that can go wrong in a script once, and most of it with a kill after it."""
    logging.disable(logging.CRITICAL)
    failures = [(str(Case(name)), problem) for problem in judge(Case(name))]
    plays, kinds = 1, Counter(point.kind for point in whole(name).world.points)
    for first in cases_of(name):
        wanted = [first]
        if first.faults[0].kind in FIRST_OF_TWO and (then := second(first, seed)) is not None:
            wanted.append(then)
        for case in wanted:
            plays += 1
            failures += [(str(case), problem) for problem in judge(case)]
    return Outcome(name, len(whole(name).world.points), plays, kinds, tuple(failures))


def run_everything(names: Sequence[str], seed: int, processes: int) -> int:
    """Play all scripts, print what came of each, and return the number of failures."""
    began, points, plays, failed, kinds = time.monotonic(), 0, 0, 0, Counter[str]()
    with ProcessPoolExecutor(processes) as pool:
        tasks = [pool.submit(play_all, name, seed) for name in names]
        for number, task in enumerate(as_completed(tasks), 1):
            outcome = task.result()
            points, plays, failed = points + outcome.points, plays + outcome.plays, failed + len(outcome.failures)
            kinds.update(outcome.kinds)
            print(
                f"{number:3d}/{len(names)} {outcome.script}: {outcome.points} points, {outcome.plays} plays", flush=True
            )
            for case, problem in outcome.failures:
                print(f'    {problem}\n      again: make faults AT="{case}"', flush=True)
    seconds = time.monotonic() - began
    where = f"{points} points of {len(kinds)} kinds in {len(names)} scripts"
    print(f"{where}, {plays} plays, {failed} failures, seed {seed}, {seconds:.0f} s")
    return failed


def run_one(text: str) -> int:
    """Play one case, print its points and what is wrong, and return the number of failures."""
    name, _, faults = text.partition(" ")
    case = Case(name, read_faults(faults))
    for point in play(case).points:
        print(f"{point.number:4d} attempt {point.process} {point.kind}")
    problems = judge(case)
    print("\n".join(problems) or "nothing is wrong")
    return len(problems)


def main() -> int:
    """Play what is asked for."""
    parser = argparse.ArgumentParser(description="Stop the runner at each point between two facts.")
    parser.add_argument("at", nargs="*", help="a script, and its faults as 12:kill,40:late")
    parser.add_argument("--seed", type=int, default=SEED, help="chooses the second kill of each play")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="scripts whose name holds this")
    given = parser.parse_args()
    if given.at:
        return min(1, run_one(" ".join(given.at)))
    names = [name for name in scripts() if given.only in name]
    return min(1, run_everything(names, given.seed, given.processes))


if __name__ == "__main__":
    sys.exit(main())
