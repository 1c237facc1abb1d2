#!/usr/bin/env python3
"""What idle event streams cost the operator API: memory and processor for so many viewers of so many runs.

The process is the real one but for the API server: who calls is always let in, and the picture is filled by hand. Redis
is a real one. Viewers are plain sockets of this process. Then every run sends one frame, and what is taken is how long
it takes until all viewers have it. Prints one line a figure.

    PYTHONPATH=tests .venv/bin/python hack/bench/event_streams.py [--viewers 2000] [--runs 200] [--seconds 40]
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import uvicorn

from pilothouse_api.names import redis_run_prefix
from pilothouse_console.access import Access, Caller
from pilothouse_console.api import Services, build_app
from pilothouse_console.gate import Gate
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Picture
from pilothouse_console.redis_store import RedisStore, connect
from pilothouse_console.rights import Guard
from pilothouse_console.streams import Streams
from support.redis_server import RedisServer

TICKS = os.sysconf("SC_CLK_TCK")
NAMESPACE = "bench"


class OpenDoors:
    """Lets everybody in."""

    async def identify(self, token: str) -> Caller:
        return Caller("viewer")

    async def may(self, caller: Caller, verb: str, namespace: str = "", name: str = "") -> bool:
        return True


def serve(redis_url: str, runs: int, viewers: int, told: Connection) -> None:
    asyncio.run(_serve(redis_url, runs, viewers, told))


async def _serve(redis_url: str, runs: int, viewers: int, told: Connection) -> None:
    metrics, picture = Metrics(), Picture()
    for number in range(runs):
        picture.apply(_raw_run(number))
    access: Any = OpenDoors()
    store = RedisStore(connect(redis_url, None), metrics)
    streams = Streams(picture, store, metrics, viewers, viewers)
    services = Services(
        picture=picture,
        watching=cast(Any, None),
        guard=Guard(access, picture, cast(Any, None)),
        steering=cast(Any, None),
        metrics=metrics,
        access=cast(Access, access),
        streams=streams,
        store=store,
        heartbeat_seconds=15.0,
    )
    app = Gate(build_app(services), access, metrics)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        reading = asyncio.create_task(streams.run())
        told.send(listening.getsockname()[1])
        await server.serve(sockets=[listening])
        reading.cancel()


def _raw_run(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"namespace": NAMESPACE, "name": f"r{number}", "uid": f"u{number}", "resourceVersion": "1"},
        "spec": {"workflowRef": {"name": "w"}},
        "status": {"phase": "Running", "run": {"attempt": 1, "turn": 1}},
    }


async def view(port: int, run: int) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/api/agents/runs/{NAMESPACE}/r{run}/events"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n".encode())
    await writer.drain()
    await reader.readuntil(b"event: run")
    reader.writer = writer  # type: ignore[attr-defined]  # kept open as long as the reader
    return reader


def usage(pid: int) -> tuple[float, float]:
    """Return resident memory in MiB and processor seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, (int(fields[11]) + int(fields[12])) / TICKS


async def measure(port: int, pid: int, server: RedisServer, options: argparse.Namespace) -> None:
    empty, _ = usage(pid)
    began = time.monotonic()
    readers: list[asyncio.StreamReader] = []
    for first in range(0, options.viewers, 50):
        batch = range(first, min(first + 50, options.viewers))
        readers += await asyncio.gather(*[view(port, number % options.runs) for number in batch])
    print(f"viewers opened                {options.viewers} of {options.runs} runs in {time.monotonic() - began:.1f} s")
    await asyncio.sleep(2)
    full, before = usage(pid)
    await asyncio.sleep(options.seconds)
    later, after = usage(pid)
    per_viewer = (full - empty) * 1024 / options.viewers
    print(f"memory, no viewer             {empty:.0f} MiB")
    print(f"memory, all viewers           {full:.0f} MiB ({per_viewer:.0f} KiB each)")
    print(f"memory, {options.seconds} s later           {later:.0f} MiB")
    print(f"processor while idle          {(after - before) / options.seconds * 100:.1f} % of one")
    began = time.monotonic()
    waiting = asyncio.gather(*[reader.readuntil(b"event: frame") for reader in readers])
    for number in range(options.runs):
        server.ask("XADD", f"{redis_run_prefix(NAMESPACE, f'u{number}')}frames", "*", "frame", '{"turn":1}')
    sent = time.monotonic()
    await waiting
    done = time.monotonic()
    print(f"one frame a run to all        {done - sent:.2f} s after the last was sent ({sent - began:.2f} s to send)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--viewers", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=40)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, options.viewers * 2 + 500), most))
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        ours, theirs = multiprocessing.Pipe()
        arguments = (server.url, options.runs, options.viewers, theirs)
        process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
        process.start()
        try:
            port = ours.recv()
            asyncio.run(measure(port, process.pid or 0, server, options))
        finally:
            process.terminate()
            process.join()
            server.close()


if __name__ == "__main__":
    main()
