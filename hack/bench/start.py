#!/usr/bin/env python3
"""`make bench-start`: from the start of a runner's process to its first model request, beside `import litellm`.

The runner is whole: plan with its digest, a journal in Redis, status over TLS, an OpenAI-compatible model. Model and
API server are two loopback servers of this process, which answer at once, so that what is measured is the runner.
Starts alternate with `import litellm` (without its price table from the network) and with an empty Python. CPU is the
least of a whole process, a runner's one turn and end included. Exits with 1 when a target is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.redis_server import RedisServer

MOST_OF_LITELLM = 0.25
MOST_MODULES = 400
START_TIMEOUT_SECONDS = 60
RUN_UID = "0b5e1c9a-5d0e-4a59-9f3b-8f1f6f3d6f11"


@dataclass
class Stubs:
    """The API server and the model, as far as one run of one turn needs them."""

    first_model_request: float | None = None
    run: dict[str, object] = field(default_factory=dict)

    def begin(self) -> None:
        self.first_model_request = None
        self.run = {
            "apiVersion": names.API_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": "r1", "namespace": "default", "uid": RUN_UID, "generation": 1, "resourceVersion": "1"},
            "spec": {"workflowRef": {"name": "w"}},
            "status": {"attempt": 1},
        }

    async def serve_model(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for _ in requests(reader):
            if self.first_model_request is None:
                self.first_model_request = time.perf_counter()
            message = {"role": "assistant", "content": "done"}
            answer = {
                "id": "c1",
                "object": "chat.completion",
                "model": "stub",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
            respond(writer, answer)
        writer.close()

    async def serve_api(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for request_line in requests(reader):
            if b"watch=true" in request_line:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                await reader.read()  # nothing ever changes; until the runner hangs up
                break
            respond(writer, self.run)
        writer.close()


async def requests(reader: asyncio.StreamReader):
    """Yield the request line of each request on a connection, its body read."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.split(b"\r\n")
            lengths = [line.partition(b":")[2] for line in lines if line.lower().startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0]) if lengths else 0)
            yield lines[0]
    except (asyncio.IncompleteReadError, ConnectionError):
        return


def respond(writer: asyncio.StreamWriter, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


# ---------------------------------------------------------------- the pod


def write_pod(folder: Path, api_port: int, model_port: int, redis_url: str) -> dict[str, str]:
    """Write what a pod's volumes hold; return its environment."""
    tool = {"name": "look", "description": "x", "inlineStep": {"kind": "Router", "router": {"match": "a"}}}
    agent = {
        "mode": "Autonomous",
        "model": {
            "name": "openai/stub",
            "apiBase": f"http://127.0.0.1:{model_port}/v1",
            "apiKeySecretRef": {"name": "llm", "key": "api-key"},
        },
        "steering": {"inline": "Be brief."},
        "tools": [tool],
    }
    plan = Plan.model_validate(
        {
            "run": {"namespace": "default", "name": "r1", "uid": RUN_UID},
            "workflow": {"name": "w", "digest": "d"},
            "spec": {"steps": [{"id": "work", "kind": "Agent", "agent": agent}]},
            "input": {"ticket": "I was charged twice"},
            "secrets": ["llm/api-key"],
        }
    ).encode()
    (folder / "plan.json").write_text(plan)
    (folder / "secrets" / "llm").mkdir(parents=True)
    (folder / "secrets" / "llm" / "api-key").write_text("no-key")
    (folder / "token").write_text("no-token")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        names.ENV_RUN_NAMESPACE: "default",
        names.ENV_RUN_NAME: "r1",
        names.ENV_RUN_UID: RUN_UID,
        names.ENV_ATTEMPT: "1",
        names.ENV_PLAN_PATH: str(folder / "plan.json"),
        names.ENV_PLAN_DIGEST: text_digest(plan),
        names.ENV_JOURNAL: "Redis",
        names.ENV_REDIS_URL: redis_url,
        names.ENV_SECRETS_PATH: str(folder / "secrets"),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api_port),
        "BENCH_TOKEN_PATH": str(folder),
    }


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Write `ca.crt`; return the API server's side."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench"
    names_of_server = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")]
    subprocess.run([*command.split(), *names_of_server, *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.crt", folder / "ca.key")
    return context


# ---------------------------------------------------------------- starts


@dataclass(frozen=True)
class Start:
    """Seconds to what was waited for, and of processor time of the whole process."""

    wall: float
    cpu: float
    modules: int = 0


async def start_runner(stubs: Stubs, redis: RedisServer, environment: dict[str, str]) -> Start:
    """Return the start of a runner with a new journal; its wall time ends at the first model request."""
    stubs.begin()
    redis.ask("FLUSHALL")
    read_end, write_end = os.pipe()
    before, started = cpu_of_children(), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("start_cell.py")),
        env={**environment, "BENCH_REPORT_FD": str(write_end)},
        pass_fds=[write_end],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    os.close(write_end)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), START_TIMEOUT_SECONDS)
    except TimeoutError:
        process.kill()
        sys.exit(f"the runner did not end within {START_TIMEOUT_SECONDS} s")
    with os.fdopen(read_end) as report:
        modules = report.read()
    if process.returncode != 0 or stubs.first_model_request is None:
        sys.exit(f"the runner failed with exit code {process.returncode}:\n{output.decode()[-3000:]}")
    return Start(stubs.first_model_request - started, cpu_of_children() - before, int(modules))


async def start_python(code: str) -> Start:
    """Return the start of a Python of its own for a piece of code."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    before, started = cpu_of_children(), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    code_of_exit = await process.wait()
    if code_of_exit != 0:
        sys.exit(f"python -c {code!r} failed with exit code {code_of_exit}")
    return Start(time.perf_counter() - started, cpu_of_children() - before)


def cpu_of_children() -> float:
    """Return the processor time of all processes that were started and have ended: they run one after another."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def measure(rounds: int) -> int:
    stubs = Stubs()
    with tempfile.TemporaryDirectory() as name, contextlib.closing(RedisServer(Path(name)).start()) as redis:
        folder = Path(name)
        api = await asyncio.start_server(stubs.serve_api, "127.0.0.1", 0, ssl=make_certificate(folder))
        model = await asyncio.start_server(stubs.serve_model, "127.0.0.1", 0)
        ports = [server.sockets[0].getsockname()[1] for server in (api, model)]
        environment = write_pod(folder, *ports, redis.url)
        async with api, model:
            runner: list[Start] = []
            litellm: list[Start] = []
            empty: list[Start] = []
            for _ in range(rounds + 1):  # the first round compiles and fills the disk cache
                runner.append(await start_runner(stubs, redis, environment))
                litellm.append(await start_python("import litellm"))
                empty.append(await start_python("pass"))
    return report(runner[1:], litellm[1:], empty[1:])


def report(runner: list[Start], litellm: list[Start], empty: list[Start]) -> int:
    part = statistics.median(start.wall for start in runner) / statistics.median(start.wall for start in litellm)
    print(f"{'milliseconds':<42}{'median':>9}{'fastest':>9}{'CPU':>9}")
    for what, starts in (
        ("empty Python", empty),
        ("runner start to its first model request", runner),
        ("import litellm", litellm),
    ):
        walls, cpu = [start.wall for start in starts], min(start.cpu for start in starts)
        print(f"{what:<42}{statistics.median(walls) * 1000:>9,.0f}{min(walls) * 1000:>9,.0f}{cpu * 1000:>9,.0f}")
    print(f"\n{'Target':<42}{'measured':>9}{'at most':>9}")
    verdicts = []
    for what, measured, limit in (
        ("part of import litellm", part, MOST_OF_LITELLM),
        ("modules loaded", runner[-1].modules, MOST_MODULES),
    ):
        verdicts.append(measured <= limit)
        print(f"{what:<42}{measured:>9.4g}{limit:>9}  {'met' if verdicts[-1] else 'MISSED'}")
    return 0 if all(verdicts) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each (default 5)")
    sys.exit(asyncio.run(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
