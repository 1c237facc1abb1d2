"""Runs that are supervised, for tests on a real API server: supervisors, a judge over HTTP, and snapshots that fire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from integration.operator.stage import SCRIPTED, Stage, now, park
from pilothouse_api import names
from pilothouse_kubernetes.client import AGENTRUNS, EVENTS, PODS, SUPERVISORS, Raw

TURN, LENGTH = 3, 30
JUDGE_TOKEN = "the-operators-token"


async def apply_supervisor(stage: Stage, name: str, **spec: Any) -> Raw:
    body = {"apiVersion": names.API_VERSION, "kind": "Supervisor", "metadata": {"name": name}, "spec": spec}
    return await stage.api.create(SUPERVISORS, stage.namespace, body)


async def change_supervisor(stage: Stage, name: str, **spec: Any) -> Raw:
    return await stage.api.merge_patch(SUPERVISORS, stage.namespace, name, {"spec": spec})


async def supervisor(stage: Stage, name: str) -> Raw:
    return await stage.api.get(SUPERVISORS, stage.namespace, name)


async def apply_crew(stage: Stage, **workflow: Any) -> None:
    """An agent with one tool, and a workflow that runs it."""
    model = {**SCRIPTED, "maxOutputTokens": 100}
    await stage.apply_agent("helper", model=model)
    tool = {"name": "help", "description": "Helps.", "agentRef": {"name": "helper"}}
    agent = {"mode": "Autonomous", "steering": {"inline": "Ask for help."}, "prompt": None, "tools": [tool]}
    await stage.apply_agent("worker", model=model, **agent)
    await stage.apply_workflow(**workflow)


async def apply_run(stage: Stage, name: str = "r1", labels: Mapping[str, str] | None = None, **spec: Any) -> Raw:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"workflowRef": {"name": "flow"}, **spec},
    }
    return await stage.api.create(AGENTRUNS, stage.namespace, body)


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def quiet(turn: int = 1, **more: Any) -> Raw:
    """A snapshot at which nothing fires, of a visit of the agent."""
    return {
        "journalLength": 10 * turn,
        "step": "say",
        "visit": 1,
        "turn": turn,
        "iteration": turn,
        "maxIterations": 20,
        "tokens": {"used": 100, "budget": 1000},
        "visitCounts": {"toolCalls": {"help": 1}, "identicalCalls": 1},
        "lastProgressTime": now(),
        **more,
    }


def alarming(turn: int = TURN, **more: Any) -> Raw:
    """A snapshot at which every rule of `RULES` fires."""
    counts = {"toolCalls": {"help": 5}, "undeclaredToolCalls": 1, "toolErrors": 6, "identicalCalls": 4}
    return quiet(
        turn,
        **{
            "iteration": 6,
            "tokens": {"used": 900, "budget": 1000},
            "visitCounts": counts,
            "lastProgressTime": ago(60),
            **more,
        },
    )


RULES: Mapping[str, Raw] = {
    "ToolRepeated": {"toolRepeated": {"tool": "help", "count": 4}},
    "BudgetFraction": {"budgetFraction": {"percent": 80}},
    "IterationReached": {"iterationReached": {"count": 6}},
    "IdenticalCallRepeated": {"identicalCallRepeated": {"count": 4}},
    "UndeclaredToolCalled": {},
    "NoProgressFor": {"noProgressFor": {"seconds": 20}},
    "Expression": {"expression": {"cel": "run.toolErrors > 5 && run.iteration < 10"}},
}


def rule(when: str, then: str, name: str = "rule") -> Raw:
    return {"name": name, "when": when, "then": then, **RULES[when]}


def judging(criteria: str, model: str = "small", **more: Any) -> Raw:
    """A judge whose criteria tell `JudgeService` what to answer."""
    return {"model": model, "criteria": {"inline": criteria}, "timeoutSeconds": 20, **more}


# ---------------------------------------------------------------- the judge


@dataclass
class JudgeService:
    """The platform's judge as the operator knows it: answers what the criteria say, holds what `HOLD` says."""

    models: list[str] = field(default_factory=lambda: ["small"])
    asked: list[Raw] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def table(self, request: web.Request) -> web.Response:
        return web.json_response({"models": self.models})

    async def verdict(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {JUDGE_TOKEN}"
        body = await request.json()
        self.asked.append(body)
        if "HOLD" in body["criteria"]:
            await self.release.wait()
        if "BREAK" in body["criteria"]:
            return web.json_response(
                {"type": "BadAnswer", "message": "the model gave no verdict", "tokens": 7}, status=502
            )
        passed = "FAIL" not in body["criteria"]
        return web.json_response({"passed": passed, "reason": "" if passed else "off the task", "tokens": 7})


@asynccontextmanager
async def judge_service() -> AsyncIterator[JudgeService]:
    service = JudgeService()
    app = web.Application()
    app.router.add_get("/v1/models", service.table)
    app.router.add_post("/v1/verdicts", service.verdict)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        service.release.set()
        await runner.cleanup()


def judge_settings(service: JudgeService, folder: Path) -> dict[str, str]:
    token = folder / "judge-token"
    token.write_text(JUDGE_TOKEN)
    return {"JUDGE_URL": service.url, "JUDGE_TOKEN_PATH": str(token)}


# ---------------------------------------------------------------- what stands on runs


def record(raw: Raw) -> Raw:
    found: Raw = raw.get("status", {}).get("supervision", {})
    return found


def actions(raw: Raw) -> list[Raw]:
    found: list[Raw] = record(raw).get("actions", [])
    return found


def is_so(fits: Callable[[Raw], Any], raw: Raw) -> bool:
    """Whether a run is as it should be; one that lacks what is asked about is not so yet."""
    try:
        return bool(fits(raw))
    except LookupError:
        return False


async def wait_run(stage: Stage, fits: Callable[[Raw], Any], name: str = "r1", seconds: float = 120) -> Raw:
    """Wait until a run is as it should be."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        raw = await stage.run(name)
        if is_so(fits, raw):
            return raw
        assert asyncio.get_running_loop().time() < deadline, f"{raw['spec'].get('control')} {raw.get('status')}"
        await asyncio.sleep(0.05)


def settled(count: int = 1) -> Callable[[Raw], bool]:
    """Whether so many actions are settled."""
    return lambda raw: len([one for one in actions(raw) if one.get("state", "Intended") != "Intended"]) >= count


async def interventions(stage: Stage, name: str = "r1") -> list[Raw]:
    """The Events of supervision on a run."""
    found = [raw async for page in stage.api.list_pages(EVENTS, stage.namespace) for raw in page]
    return [
        raw for raw in found if raw["involvedObject"]["name"] == name and str(raw["reason"]).startswith("Supervisor")
    ]


async def publish_barrier(stage: Stage, snapshot: Raw, name: str = "r1", since: str = "") -> None:
    """Publish a snapshot as a runner does that waits at the barrier."""
    waits = park("Barrier", snapshot["turn"], wake=ago(-60)) | ({"since": since} if since else {})
    await stage.publish(name, **{**snapshot, "parked": waits})


class Board:
    """What all runs of a namespace look like, and which pods there are, by one list for everybody who waits."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._runs: dict[str, Raw] = {}
        self.pods: set[str] = set()
        self._news = asyncio.Condition()

    async def watch(self) -> None:
        while True:
            # Pods first: of each that is seen, the run is seen as it was when the pod was made, or later.
            listed = self._stage.api.list_pages(PODS, self._stage.namespace, metadata_only=True, limit=500)
            pods = {raw["metadata"]["name"] async for page in listed for raw in page}
            pages = self._stage.api.list_pages(AGENTRUNS, self._stage.namespace, limit=500)
            self._runs, self.pods = {raw["metadata"]["name"]: raw async for page in pages for raw in page}, pods
            async with self._news:
                self._news.notify_all()
            await asyncio.sleep(0.2)

    async def wait(self, name: str, fits: Callable[[Raw], Any], seconds: float = 240) -> Raw:
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: name in self._runs and is_so(fits, self._runs[name]))
        except TimeoutError:
            raise AssertionError(f"{name} is not as it should be: {self._runs.get(name)}") from None
        return self._runs[name]
