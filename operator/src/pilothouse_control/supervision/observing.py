"""From a snapshot to an Observation: numbers of the runner, names of the plan (supervision.md "Observation")."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from pilothouse_api.observation import Observation, Spend
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1.agent import AgentSpec, Tool
from pilothouse_api.v1alpha1.agentrun import CostReport, Snapshot, TokenReport, VisitCounts

ENGINE_TOOLS = ("read_tool_result", "update_plan")
"""Tools that the engine adds to those of an agent; besides, `start_<tool>_task` of each background tool."""
ALL = "*"


def observe(snapshot: Snapshot, plan: Plan, now: datetime) -> Observation | None:
    """Return what supervision may see of a run; None where no visit of an Agent step is open.

    No text of the snapshot is taken over: names are the plan's, times and money are written anew. The tools of a
    server that allows all (`["*"]`) have names of the server's: they are counted under the author's tool entry.
    """
    agent = _open_agent(snapshot, plan)
    if agent is None or snapshot.step is None:
        return None
    counts = snapshot.visit_counts or VisitCounts()
    calls, undeclared = _count_calls(agent, counts)
    limit = snapshot.max_iterations
    progress = _time(snapshot.last_progress_time)
    return Observation(
        step=plan.step(snapshot.step).id,
        visit=snapshot.visit,
        turn=snapshot.turn,
        iteration=snapshot.iteration,
        max_iterations=agent.limits.max_iterations if limit is None else limit,
        spend=_spend(snapshot.tokens, snapshot.cost),
        visit_spend=_spend(snapshot.tokens.visit or TokenReport(), snapshot.cost.visit or CostReport()),
        tool_calls=calls,
        undeclared_tool_calls=counts.undeclared_tool_calls + undeclared,
        tool_errors=counts.tool_errors,
        identical_calls=counts.identical_calls,
        effects_unknown=len(snapshot.effects.unknown),
        last_progress_time=None if progress is None else _rfc3339(progress),
        idle_seconds=_idle_seconds(snapshot, progress, now),
        now=_rfc3339(now),
    )


def idle_since(snapshot: Snapshot) -> datetime | None:
    """Return since when an unparked run has made no progress; None where it is parked or nobody knows."""
    return None if snapshot.parked is not None else _time(snapshot.last_progress_time)


def declared_tools(agent: AgentSpec) -> Mapping[str, str]:
    """Return the names that an agent's tools may be called by, and the name that each of them is counted under."""
    return _declared(tuple(_called(tool) for tool in agent.tools))


def _open_agent(snapshot: Snapshot, plan: Plan) -> AgentSpec | None:
    if snapshot.exit is not None or snapshot.step is None or snapshot.visit_counts is None:
        return None
    try:
        step = plan.step(snapshot.step)
        return plan.agent_of(step) if step.kind == "Agent" else None
    except KeyError:
        return None


_Called = tuple[str, str | None, tuple[str, ...], bool]


def _called(tool: Tool) -> _Called:
    server = tool.mcp.server if tool.mcp is not None else None
    return tool.name, server, tuple(tool.mcp.allow) if tool.mcp is not None else (), tool.background


@lru_cache(maxsize=256)
def _declared(tools: tuple[_Called, ...]) -> Mapping[str, str]:
    names = {name: name for name in ENGINE_TOOLS} if tools else {}
    for name, server, allow, is_background in tools:
        if server is None:
            names[name] = name
            if is_background:
                names[f"start_{name}_task"] = f"start_{name}_task"
        else:
            names |= {f"{server}__{tool}": f"{server}__{tool}" for tool in allow if tool != ALL}
    return names


@lru_cache(maxsize=256)
def _open_servers(tools: tuple[_Called, ...]) -> Mapping[str, str]:
    """Return how names of tools of servers that allow all begin, and the tool entry that they are counted under."""
    return {f"{server}__": name for name, server, allow, _ in tools if server is not None and ALL in allow}


def _count_calls(agent: AgentSpec, counts: VisitCounts) -> tuple[dict[str, int], int]:
    """Return calls by declared name, and how many calls of a snapshot's tools no name of the plan stands for."""
    tools = tuple(_called(tool) for tool in agent.tools)
    declared, open_servers = _declared(tools), _open_servers(tools)
    calls: dict[str, int] = {}
    undeclared = 0
    for called, count in counts.tool_calls.items():
        name = declared.get(called) or open_servers.get(f"{called.partition('__')[0]}__")
        if name is None:
            undeclared += max(0, count)
        else:
            calls[name] = calls.get(name, 0) + max(0, count)
    return calls, undeclared


def _spend(tokens: TokenReport, cost: CostReport) -> Spend:
    return Spend(
        used=tokens.used,
        budget=tokens.budget,
        used_usd=_money(cost.used_usd) or "0",
        budget_usd=_money(cost.budget_usd),
    )


def _money(amount: str | None) -> str | None:
    """Return an amount written anew; one that is no amount is none."""
    try:
        value = Decimal(amount) if amount is not None else None
    except InvalidOperation:
        return None
    return None if value is None or not value.is_finite() else f"{value:f}"


def _time(text: str | None) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


def _rfc3339(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _idle_seconds(snapshot: Snapshot, progress: datetime | None, now: datetime) -> int:
    """Return the unparked seconds since the last progress: while it is parked, those before the park."""
    if progress is None:
        return 0
    until = now
    if snapshot.parked is not None:
        until = _time(snapshot.parked.since) or progress
    return max(0, int((until - progress) / timedelta(seconds=1)))
