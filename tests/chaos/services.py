"""The processes beside the runners, and how they die: operators, the API server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.nursery import Child, Nursery
from pilothouse_kubernetes.client import LEASES, ApiError, KubernetesClient
from support.cluster import LocalCluster
from support.redis_server import RedisServer

SYSTEM = "pilothouse-system"
LEASE_SECONDS = 5.0
SHORT_LEASE = {"LEASE_SECONDS": "5", "RENEW_SECONDS": "4", "RETRY_SECONDS": "0.5"}


@dataclass
class Operators:
    """Two operators, each started again when it ends, as a Deployment does."""

    api: KubernetesClient
    nursery: Nursery
    environment: dict[str, str]
    lease: str
    folder: Path
    dice: random.Random
    cluster: LocalCluster
    ended: Counter[int] = field(default_factory=Counter)
    """Exit codes."""
    _living: dict[int, Child] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(number)) for number in range(2)]

    async def _keep(self, number: int) -> None:
        while True:
            child = await self.nursery.start(self.environment, self.folder / f"operator-{number}.log")
            self._living[number] = child
            self.ended[await child.wait()] += 1
            await asyncio.sleep(self.dice.uniform(0.1, 1.5))

    async def leader(self) -> Child | None:
        """Return the one that holds the Lease, or None where nobody can tell."""
        try:
            lease = await self.api.get(LEASES, SYSTEM, self.lease)
        except ApiError:
            return None
        holder = str(lease["spec"].get("holderIdentity", ""))
        return next((child for child in self._living.values() if f"_{child.pid}_" in holder), None)

    async def strike(self, number: signal.Signals, *, is_leader: bool) -> None:
        leader = await self.leader()
        for child in self._living.values():
            if (child is leader) == is_leader or leader is None:
                child.send_signal(number)
                return

    async def freeze(self) -> None:
        """Stop the leader for longer than its Lease holds: it must not write when it wakes."""
        leader = await self.leader()
        if leader is None:
            return
        leader.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE_SECONDS + 2)
        leader.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def faults(self) -> list[str]:
        return [line for line in self._lines() if '"reconcile.fault"' in line or "Traceback" in line]

    def drift(self) -> int:
        return sum('"sweep.drift"' in line for line in self._lines())

    def keep_logs(self, folder: Path) -> None:
        for name in ("audit.log", "apiserver.log"):
            (folder / name).write_bytes((self.cluster.logs / name).read_bytes())

    def _lines(self) -> list[str]:
        logs = sorted(self.folder.glob("operator-*.log"))
        return [line for log in logs for line in log.read_text(errors="replace").splitlines()]


@dataclass
class ControlPlane:
    """The API server and its etcd."""

    cluster: LocalCluster

    async def crash(self, component: str = "apiserver") -> None:
        """SIGKILL, and a new process on the same data."""
        os.kill(self._pid(component), signal.SIGKILL)
        await asyncio.to_thread(self._start, component)

    async def restart(self) -> None:
        """In good order."""
        await asyncio.to_thread(self.cluster.restart_apiserver)

    async def freeze(self, seconds: float) -> None:
        """Silence: connections stay open and nothing is answered."""
        pid = self._pid("apiserver")
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def _start(self, component: str) -> None:
        from support.cluster import _hack

        _hack("cluster", "start", "--name", self.cluster.name, component)

    def _pid(self, component: str) -> int:
        return int((self.cluster.state / "run" / f"{component}.pid").read_text())


@dataclass
class Redis:
    """The Redis of the journals, on the data that its predecessors left."""

    server: RedisServer
    dice: random.Random

    async def crash(self) -> None:
        self.server.kill()
        await asyncio.sleep(self.dice.choice([0.0, 0.2, 2.0]))
        await asyncio.to_thread(self.server.start)

    async def freeze(self) -> None:
        self.server.freeze()
        await asyncio.sleep(self.dice.uniform(0.3, 7.0))
        self.server.thaw()


@dataclass
class ToolServer:
    """The tool server's process."""

    log_path: Path
    host: str
    port: int = 0
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        import sys

        program = Path(__file__).with_name("tool_server.py")
        with self.log_path.with_suffix(".err").open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(program), str(self.log_path)), stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        self.port = int(await self.process.stdout.readline())

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@dataclass
class Trouble:
    """Kills of services, at random moments."""

    dice: random.Random
    blows: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]
    """Name and what it does; drawn with equal odds."""
    pause: tuple[float, float]
    kills: Counter[str] = field(default_factory=Counter)

    async def make(self) -> None:
        """Go on until cancelled; one blow at a time."""
        while True:
            await asyncio.sleep(self.dice.uniform(*self.pause))
            name, blow = self.dice.choice(self.blows)
            self.kills[name] += 1
            await blow()
