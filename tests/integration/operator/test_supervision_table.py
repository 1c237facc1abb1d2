"""The scenario table of supervision on a real API server: what fires × enforcement × action × state of the run.

Every cell is one run, with its action, Event, conditions and counters; `pytest -s` prints the table.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from integration.operator.stage import Stage, answered, condition, eventually, now, park
from integration.operator.supervised import (
    LENGTH,
    RULES,
    TURN,
    Board,
    actions,
    ago,
    alarming,
    apply_crew,
    apply_run,
    apply_supervisor,
    judge_service,
    judge_settings,
    judging,
    record,
    rule,
    settled,
    supervisor,
)
from pilothouse_api import names
from pilothouse_kubernetes.client import EVENTS, SUPERVISORS, Raw

pytest_plugins = ["support.cluster"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

STATES = ("running", "paused", "awaiting approval", "released", "finishing")
AT_ONCE = 24


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    fires: str
    enforcement: str
    action: str
    state: str

    @property
    def supervisor(self) -> str:
        return f"{self.fires}-{self.enforcement}-{self.action}".lower()

    @property
    def run(self) -> str:
        return f"{self.supervisor}-{self.state.replace(' ', '-')}"

    @property
    def source(self) -> str:
        return self.fires if self.fires.startswith("Judge") else "Rule/rule"

    @property
    def want(self) -> str:
        """Finish is never overwritten by Pause."""
        return "Superseded" if self.state == "finishing" and self.action == "Pause" else "Done"

    @property
    def stands_already(self) -> bool:
        """Whether a person has asked for it before."""
        return self.action == "Pause" and self.state in ("paused", "released")


def cells() -> Iterator[Cell]:
    for fires in (*RULES, "Judge", "JudgeError"):
        for action in ("Pause", "Steer", "Abort"):
            for enforcement in ("Async", "Sync"):
                if fires != "JudgeError" or action != "Steer":  # a judge that is away has nothing to say to the agent
                    yield from (Cell(fires, enforcement, action, state) for state in STATES)


CELLS = tuple(cells())


async def test_every_cell_of_the_table(stage: Stage, tmp_path: Any) -> None:
    async with judge_service() as judge:
        operator = await stage.operator(JOURNAL_CLAIM="journals", **judge_settings(judge, tmp_path)).start()
        await apply_crew(stage)
        await make_supervisors(stage)
        board = Board(stage)
        watching = asyncio.create_task(board.watch())
        hands = asyncio.Semaphore(AT_ONCE)
        try:
            runs = await asyncio.gather(*(play(stage, board, cell, hands) for cell in CELLS))
        finally:
            watching.cancel()
        found = dict(zip(CELLS, runs, strict=True))
        events = await wait_events(stage, found)
        for cell, raw in found.items():
            assert_cell(cell, raw, events[cell.run])
        await assert_counters(stage, found)
        await assert_metrics(await operator.get("/metrics"))
    print(render(found))


async def make_supervisors(stage: Stage) -> None:
    one_of_each = {cell.supervisor: cell for cell in CELLS}
    for name, cell in one_of_each.items():
        spec: dict[str, Any] = {"selector": {"matchLabels": {"watched-by": name}}, "enforcement": cell.enforcement}
        if cell.fires == "Judge":
            spec |= {"judge": judging("FAIL"), "onViolation": cell.action}
        elif cell.fires == "JudgeError":
            spec |= {"judge": judging("BREAK", onError=cell.action)}
        else:
            spec |= {"rules": [rule(cell.fires, cell.action)], "steerMessage": "Come to an end."}
        await apply_supervisor(stage, name, **spec)

    async def seen() -> bool:
        """Who selects runs watches those that begin once the operator knows of it."""
        found = [raw async for page in stage.api.list_pages(SUPERVISORS, stage.namespace) for raw in page]
        return all("conditions" in raw.get("status", {}) for raw in found)

    await eventually(seen)


# ---------------------------------------------------------------- one run


async def play(stage: Stage, board: Board, cell: Cell, hands: asyncio.Semaphore) -> Raw:
    async with hands:
        await apply_run(stage, cell.run, {"watched-by": cell.supervisor})
        begun = await board.wait(cell.run, lambda raw: names.pod_name(cell.run, 1) in board.pods)
        assert_bound(cell, begun)
        await come_into_state(stage, cell)
        raw = await board.wait(cell.run, settled())
        return await land(stage, board, cell, actions(raw)[0])


def assert_bound(cell: Cell, raw: Raw) -> None:
    """Who watches, and what the runner waits for, stands in status before there is a pod."""
    (known,) = record(raw)["supervisors"].values()
    assert known["name"] == cell.supervisor
    assert ("barrier" in record(raw)) == (cell.enforcement == "Sync")


async def come_into_state(stage: Stage, cell: Cell) -> None:
    """Do what a person did before, and publish the snapshot that fires as the runner does in that state."""
    parked: Raw = {}
    if cell.enforcement == "Sync":
        parked = {"parked": park("Barrier", TURN, wake=ago(-60))}
    match cell.state:
        case "paused" | "released":
            await stage.control(cell.run, mode="Pause", reason="lunch")
            waits = park("Paused", TURN, released=cell.state == "released")
            parked = {"parked": waits, "control": answered("Pause", 2, TURN)}
        case "awaiting approval":
            pending = {"callId": "t3-0-00000000", "tool": "help", "arguments": {}, "requestedAt": now()}
            parked = {"parked": park("AwaitingApproval", TURN), "pendingApprovals": [pending]}
        case "finishing":
            await stage.control(cell.run, mode="Finish")
    await stage.publish(cell.run, **alarming(**parked))
    if cell.state == "released":
        await stage.end_pod(names.pod_name(cell.run, 1))


async def land(stage: Stage, board: Board, cell: Cell, action: Raw) -> Raw:
    """Play the runner that answers, and return the run when everything is told."""
    if cell.want == "Superseded":
        return await board.wait(cell.run, lambda raw: supervised(raw) == "Watched")
    attempt = 1
    if cell.state == "released" and not cell.stands_already:
        attempt = await wake(stage, board, cell)
    landing = {"state": "Landed", "turn": TURN + 1, "time": now()}
    later = {"turn": TURN + 1, "journalLength": LENGTH + 5}
    match cell.action:
        case "Pause" if not cell.stands_already:
            paused = {"parked": park("Paused", TURN + 1), "control": answered("Pause", 3, TURN + 1)}
            await stage.publish(cell.run, attempt, **alarming(**later, **paused))
        case "Steer":
            answer = {**answered("Run", 9, TURN), "steer": {action["id"]: landing}}
            await stage.publish(cell.run, attempt, **alarming(**later, control=answer))
        case "Abort":
            answer = answered("Abort", 9, TURN + 1)
            run_exit = {"signal": "aborted", "reason": "Aborted", "message": "as it was told"}
            await stage.publish(cell.run, attempt, **alarming(**later, exit=run_exit, control=answer))
            await stage.end_pod(names.pod_name(cell.run, attempt))
            return await board.wait(cell.run, lambda raw: raw["status"].get("phase") == "Aborted")
    return await board.wait(cell.run, lambda raw: "landedTurn" in actions(raw)[0])


async def wake(stage: Stage, board: Board, cell: Cell) -> int:
    """A run that holds no pod goes on: by the Abort itself, or when a person says so."""
    if cell.action == "Steer":
        await stage.control(cell.run, mode="Run")
    await board.wait(cell.run, lambda raw: names.pod_name(cell.run, 2) in board.pods)
    return 2


# ---------------------------------------------------------------- what must stand there


def supervised(raw: Raw) -> str | None:
    found = condition(raw, "Supervised")
    return str(found["reason"]) if found is not None else None


def assert_cell(cell: Cell, raw: Raw, events: list[Raw]) -> None:
    (action,) = actions(raw)
    (known,) = record(raw)["supervisors"].values()
    want = {
        "supervisor": cell.supervisor,
        "generation": 1,
        "action": cell.action,
        "source": cell.source,
        "turn": TURN,
        "visit": 1,
        "state": cell.want,
    }
    assert {name: action.get(name) for name in want} == want, cell
    is_done = cell.want == "Done"
    assert action.get("landedTurn") == landed_turn(cell), cell
    assert known.get("actions", {}) == ({cell.action.lower(): 1} if is_done else {}), cell
    reason = {"Pause": "SupervisorPaused", "Steer": "SupervisorSteered", "Abort": "SupervisorAborted"}[cell.action]
    assert [event["reason"] for event in events] == [reason if is_done else "SupervisorSuperseded"], cell
    assert f"{cell.action} by {cell.supervisor} ({cell.source}, generation 1) at turn 3: " in events[0]["message"]
    assert supervised(raw) == ("Intervened" if is_done else "Watched"), cell
    assert_control(cell, raw, action)
    if cell.enforcement == "Sync":
        assert record(raw)["clock"]["journalLength"] >= LENGTH, cell
    if cell.fires.startswith("Judge"):
        judge = condition(raw, "JudgeReady")
        assert judge is not None and (judge["status"] == "True") == (cell.fires == "Judge"), (cell, judge)
        assert known["judge"]["calls"] == 1 and known["judge"]["tokensUsed"] == 7, cell
        assert known["judge"].get("failures", 0) == (cell.fires == "JudgeError"), cell


def landed_turn(cell: Cell) -> int | None:
    if cell.want == "Superseded":
        return None
    return TURN if cell.stands_already else TURN + 1


def assert_control(cell: Cell, raw: Raw, action: Raw) -> None:
    control, phase = raw["spec"].get("control", {}), raw["status"]["phase"]
    if cell.want == "Superseded":
        assert (control["mode"], phase) == ("Finish", "Running"), cell
    elif cell.action == "Steer":
        text = "off the task" if cell.fires == "Judge" else "Come to an end."
        assert control["steer"] == {action["id"]: {"message": text}}, cell
        assert action["id"].startswith("judge-000003-" if cell.fires == "Judge" else "sup-000003-"), cell
    elif cell.stands_already:
        assert (control["mode"], control["reason"], phase) == ("Pause", "lunch", "Paused"), cell
    else:
        assert control["mode"] == cell.action and cell.supervisor in control["reason"], cell
        assert phase == {"Pause": "Paused", "Abort": "Aborted"}[cell.action], cell


async def wait_events(stage: Stage, found: dict[Cell, Raw]) -> dict[str, list[Raw]]:
    """Wait until each run has its Event: they are posted in the background."""

    async def look() -> dict[str, list[Raw]] | None:
        events: dict[str, list[Raw]] = {cell.run: [] for cell in found}
        async for page in stage.api.list_pages(EVENTS, stage.namespace, limit=500):
            for raw in page:
                name = raw["involvedObject"]["name"]
                if name in events and str(raw["reason"]).startswith("Supervisor"):
                    events[name].append(raw)
        return events if all(events.values()) else None

    events = await eventually(look)
    assert events is not None
    return events


async def assert_counters(stage: Stage, found: dict[Cell, Raw]) -> None:
    """The counters of each Supervisor are the sum over its runs, those that have ended included."""
    done: dict[str, Counter[str]] = {cell.supervisor: Counter() for cell in found}
    for cell in found:
        done[cell.supervisor].update([cell.action] if cell.want == "Done" else [])

    async def look() -> str | None:
        for name, counts in done.items():
            status = (await supervisor(stage, name))["status"]
            want = {action.lower(): counts[action] for action in ("Pause", "Steer", "Abort")}
            if status["actions"] != want or status["lastAction"]["turn"] != TURN:
                return None
            is_judge = name.startswith("judge")
            if is_judge and (status["judge"]["calls"], status["judge"]["tokensUsed"]) != (len(STATES), 7 * len(STATES)):
                return None
            watched = 0 if "-abort" in name else len(STATES)
            if status["watchedRuns"] != watched:
                return None
        return "all"

    await eventually(look)


async def assert_metrics(answer: tuple[int, str]) -> None:
    want = Counter((cell.action, cell.source.partition("/")[0]) for cell in CELLS if cell.want == "Done")
    for (action, source), count in want.items():
        name = "pilothouse_agent_supervisor_actions_total"
        assert f'{name}{{action="{action}",source="{source}"}} {count}.0' in answer[1]
    failures = len([cell for cell in CELLS if cell.fires == "JudgeError"])
    assert f'pilothouse_agent_judge_failures_total{{type="BadAnswer"}} {failures}.0' in answer[1]


def render(found: dict[Cell, Raw]) -> str:
    """The table, one line for what fires, one column for each state."""
    lines = ["", f"{'fires':<24}{'enforcement':<13}{'action':<8}" + "".join(f"{state:<22}" for state in STATES)]
    for cell in found:
        if cell.state != STATES[0]:
            continue
        row = [one for one in found if one.supervisor == cell.supervisor]
        shown = (f"{actions(found[one])[0]['state']}, {found[one]['status']['phase']}" for one in row)
        lines.append(
            f"{cell.fires:<24}{cell.enforcement:<13}{cell.action:<8}" + "".join(f"{text:<22}" for text in shown)
        )
    return "\n".join([*lines, f"{len(found)} cells"])
