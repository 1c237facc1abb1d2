"""One cell of `make bench-engine`: one loop, one number of turns, in a process of its own.

    engine_cell.py LOOP TURNS RUNS FOLDER

A run is TURNS model replies: all but the last ask for one call of a trivial tool, the last one is a text. Every loop
plays the same replies and runs the same tool, which returns two bytes; what it did is checked after each run. Prints
one line of JSON: microseconds a turn (medians of the runs, after warm-up) on the wall's clock and of processor time,
and bytes that a durable loop wrote a turn.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))  # how a redis-server is started

WARM_UP_TURNS = 400
"""Turns before anything is measured, for runs of any length: else a short one measures a colder loop."""
FINAL_TEXT = "done"

Run = Callable[[int], Awaitable[str]]
"""Plays one run, given its number; returns the last text."""


class Tool:
    """The trivial tool; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, x: int) -> str:
        self.calls += 1
        return "ok"


class Replies:
    """The scripted replies of one run: the argument of the next tool call, or None for the last text."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._turn = 0

    def next(self) -> int | None:
        self._turn += 1
        if self._turn < self._turns:
            return self._turn
        self._turn = 0
        return None


@asynccontextmanager
async def floor(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    """What a loop costs that does nothing but loop."""
    replies = Replies(turns)

    async def model(messages: list[dict[str, object]]) -> dict[str, object]:
        x = replies.next()
        if x is None:
            return {"role": "assistant", "content": FINAL_TEXT}
        return {"role": "assistant", "call": {"id": f"c{x}", "name": "tool", "arguments": json.dumps({"x": x})}}

    async def run(number: int) -> str:
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        while True:
            reply = await model(messages)
            messages.append(reply)
            call = reply.get("call")
            if call is None:
                return str(reply["content"])
            messages.append({"role": "tool", "id": call["id"], "content": await tool(**json.loads(call["arguments"]))})

    yield run


# ---------------------------------------------------------------- Pilothouse


@asynccontextmanager
async def pilothouse(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from pilothouse_engine.testing.journal import MemoryJournal

    yield engine_run(turns, tool, lambda number: MemoryJournal())


GUARDRAILS = {
    "input": [{"check": "MaxChars", "maxChars": {"limit": 20_000}}, {"check": "PromptInjection"}],
    "tools": [
        {"check": "PiiMask", "piiMask": {"entities": ["Email", "CreditCard", "Phone", "Iban"]}},
        {"check": "SecretMask"},
    ],
    "output": [{"check": "RegexDeny", "regexDeny": {"patterns": ["(?i)guarantee"]}}],
}
POLICY = [
    {
        "name": "no-deletes",
        "at": "ToolCall",
        "cel": "tool == 'cluster' && args.op == 'delete'",
        "verdict": "Deny",
    },
    {"name": "office-hours", "at": "ModelCall", "cel": "now.getFullYear('UTC') < 2000", "verdict": "Deny"},
]


@asynccontextmanager
async def pilothouse_guarded(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from pilothouse_engine.testing.journal import MemoryJournal

    yield engine_run(turns, tool, lambda number: MemoryJournal(), guardrails=GUARDRAILS, policy=POLICY)


@asynccontextmanager
async def pilothouse_file(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from pilothouse_runner.adapters.file_journal import FileJournal

    yield engine_run(turns, tool, lambda number: FileJournal(folder / f"{number}.jsonl", durable=True))


@asynccontextmanager
async def pilothouse_redis(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    """A redis-server as the chart configures it, on a socket of this machine: no network is measured."""
    from pilothouse_api.names import redis_run_prefix
    from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
    from pilothouse_runner.adapters.redis_journal import RedisJournal
    from support.redis_server import RedisServer

    server = RedisServer(folder).start()
    client = RedisClient(parse_address(server.url))
    try:
        yield engine_run(turns, tool, lambda number: RedisJournal(client, redis_run_prefix("bench", str(number))))
    finally:
        await client.aclose()
        server.close()


def engine_run(turns: int, tool: Tool, open_journal, **gates) -> Run:
    from pilothouse_engine.catalog import Catalog
    from pilothouse_engine.ports import Directives, HttpResponse, ModelReply, Ports, RequestedCall, Usage
    from pilothouse_engine.run import Attempt, Finished, Stop, run_attempt
    from pilothouse_runner.adapters.clock import SystemClock

    replies, usage = Replies(turns), Usage(1, 1)

    class Scripted:
        """A model class of its own, as the peers' cells have: the shipped one reads YAML and looks for what matches."""

        async def call(self, request) -> ModelReply:
            x = replies.next()
            if x is None:
                return ModelReply(FINAL_TEXT, usage=usage)
            return ModelReply(calls=(RequestedCall(f"c{x}", "tool", json.dumps({"x": x})),), usage=usage)

        def price(self, endpoint) -> None:
            return None

        def context_window(self, endpoint) -> None:
            return None

    class Store:
        """The run's object, in memory."""

        async def read(self) -> Directives:
            return Directives(uid="u1", generation=1)

        async def publish(self, snapshot) -> None:
            self.snapshot = snapshot

        async def wait(self, timeout: float) -> None:
            await asyncio.sleep(timeout)

    class Http:
        """The trivial tool behind an APICall."""

        async def send(self, request) -> HttpResponse:
            return HttpResponse(200, (), (await tool(int(request.url.rpartition("/")[2]))).encode())

    class Frames:
        def emit(self, frame) -> None:
            pass

    clock, model = SystemClock(), Scripted()
    # Made once, as the peers' graphs and agents are.
    catalog = Catalog(engine_plan(turns, gates), model.price, model.context_window, is_durable=True)

    async def run(number: int) -> str:
        ports = Ports(
            model=model,
            http=Http(),
            functions=None,
            mcp=None,
            resources=None,
            secrets=None,
            journal=open_journal(number),
            store=Store(),
            frames=Frames(),
            clock=clock,
        )
        end = await run_attempt(catalog, ports, Attempt(1), Stop())
        assert isinstance(end, Finished), end
        assert end.exit.signal == "default", end.exit
        return end.result["text"]

    return run


def engine_plan(turns: int, gates):
    from pilothouse_api.structs import Plan

    integer = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = {
        "name": "tool",
        "description": "A trivial tool.",
        "parameters": integer,
        "effect": "ReadOnly",
        "inlineStep": {"kind": "APICall", "apiCall": {"url": "http://tool.example/{{ x }}"}},
    }
    agent = {
        "mode": "Autonomous",
        "model": {"name": "openai/bench"},
        "tools": [tool],
        "outcome": {"write": "answer"},
        "limits": {"maxIterations": turns + 1, "maxToolCalls": turns + 10},
        **gates,
    }
    steps = [
        {"id": "work", "kind": "Agent", "agent": agent},
        {"id": "answer", "kind": "Response", "response": {"mapping": {"text": "answer"}}},
    ]
    return Plan.read(
        {
            "run": {"namespace": "default", "name": "r", "uid": "u1"},
            "workflow": {"name": "w", "digest": "d"},
            "spec": {"steps": steps},
        }
    )


# ---------------------------------------------------------------- peers


@asynccontextmanager
async def langgraph(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    yield graph_run(turns, tool)


@asynccontextmanager
async def langgraph_sqlite(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        yield graph_run(turns, tool, checkpointer=saver)


def graph_run(turns: int, tool: Tool, **compile_options) -> Run:
    """A bare StateGraph of two nodes: neither its tool node nor its wrapper of chat models, both of which cost more."""
    from langchain_core.messages import AIMessage, ToolMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    replies = Replies(turns)

    async def call_model(state):
        x = replies.next()
        if x is None:
            return {"messages": [AIMessage(FINAL_TEXT)]}
        return {"messages": [AIMessage("", tool_calls=[{"id": f"c{x}", "name": "tool", "args": {"x": x}}])]}

    async def call_tools(state):
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(await tool(**call["args"]), tool_call_id=call["id"]) for call in calls]}

    def route(state):
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", call_tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["tools", END])
    graph.add_edge("tools", "model")
    app = graph.compile(**compile_options)

    async def run(number: int) -> str:
        config = {"recursion_limit": 2 * turns + 10, "configurable": {"thread_id": f"r{number}"}}
        state = await app.ainvoke({"messages": [("user", "go")]}, config)
        assert len(state["messages"]) == 2 * turns
        return state["messages"][-1].content

    return run


@asynccontextmanager
async def pydantic_ai(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    """A model class of its own: the shipped FunctionModel counts the tokens of all messages at each turn."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models import Model
    from pydantic_ai.usage import RequestUsage, UsageLimits

    replies = Replies(turns)

    class Scripted(Model):
        @property
        def model_name(self) -> str:
            return "scripted"

        @property
        def system(self) -> str:
            return "scripted"

        async def request(self, messages, model_settings, model_request_parameters):
            self.prepare_request(model_settings, model_request_parameters)
            x = replies.next()
            part = TextPart(FINAL_TEXT) if x is None else ToolCallPart("work", {"x": x}, tool_call_id=f"c{x}")
            return ModelResponse(
                parts=[part], model_name="scripted", usage=RequestUsage(input_tokens=1, output_tokens=1)
            )

    async def work(x: int) -> str:
        """A trivial tool."""
        return await tool(x)

    agent = Agent(Scripted(), tools=[work])

    async def run(number: int) -> str:
        return (await agent.run("go", usage_limits=UsageLimits(request_limit=None))).output

    yield run


@asynccontextmanager
async def openai_agents(turns: int, tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(True)
    replies = Replies(turns)

    def output(x: int | None):
        if x is not None:
            return ResponseFunctionToolCall(
                type="function_call", call_id=f"c{x}", name="work", arguments=json.dumps({"x": x})
            )
        text = ResponseOutputText(type="output_text", text=FINAL_TEXT, annotations=[])
        return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])

    class Scripted(Model):
        async def get_response(self, *args, **options):
            return ModelResponse(output=[output(replies.next())], usage=Usage(requests=1), response_id=None)

        def stream_response(self, *args, **options):
            raise NotImplementedError

    async def work(x: int) -> str:
        """A trivial tool."""
        return await tool(x)

    agent = Agent(name="bench", model=Scripted(), tools=[function_tool(work)])
    config = RunConfig(tracing_disabled=True)

    async def run(number: int) -> str:
        return (await Runner.run(agent, "go", max_turns=turns + 1, run_config=config)).final_output

    yield run


LOOPS = {
    "floor": floor,
    "pilothouse": pilothouse,
    "pilothouse-guarded": pilothouse_guarded,
    "pilothouse-file": pilothouse_file,
    "pilothouse-redis": pilothouse_redis,
    "langgraph": langgraph,
    "langgraph-sqlite": langgraph_sqlite,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
}
PEERS = ("langgraph", "langgraph-sqlite", "pydantic-ai", "openai-agents")


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def calm_collector() -> None:
    """Set the collector as `pilothouse_runner.collector` does; the peers run in an environment without the project."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "runners" / "src"))
    from pilothouse_runner import collector

    collector.calm_collector()


async def measure(loop: str, turns: int, runs: int, folder: Path) -> dict[str, object]:
    tool = Tool()
    wall, processor = [], []
    warm_up = max(2, WARM_UP_TURNS // turns)
    async with LOOPS[loop](turns, tool, folder) as run:
        calm_collector()  # as the runner's process does, and for every loop alike
        for number in range(warm_up + runs):
            calls_before = tool.calls
            started, used = time.perf_counter(), time.process_time()
            text = await run(number)
            wall.append(time.perf_counter() - started)
            processor.append(time.process_time() - used)
            assert text == FINAL_TEXT, text
            assert tool.calls - calls_before == turns - 1, tool.calls - calls_before
    # Closed by now: a database's write-ahead log is in its file.
    written = bytes_in(folder) / (warm_up + runs) / turns
    return {
        "loop": loop,
        "turns": turns,
        "wall": statistics.median(wall[warm_up:]) / turns * 1e6,
        "processor": statistics.median(processor[warm_up:]) / turns * 1e6,
        "bytes": round(written),
    }


def main() -> None:
    loop, turns, runs, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    os.environ.update({"LANGSMITH_TRACING": "false", "PYDANTIC_DISABLE_PLUGINS": "__all__"})
    print(json.dumps(asyncio.run(measure(loop, turns, runs, folder))))


if __name__ == "__main__":
    main()
