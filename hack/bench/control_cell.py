#!/usr/bin/env python3
"""What plays the data plane for `make bench-control`: a process that is started by hack/bench/control.py.

`runners` is a kubelet whose containers are tasks: for each pod of its share it binds the pod, reports it as running,
and advances the run with the pod's own assembly (engine, run store over TLS, journal and frames in Redis). Many runs
share a process, since two processors hold no 200; nothing else is left out. `snapshots` plays runners that only speak:
it replaces `status.run` of all runs in turn, so many times a second, as a runner does after a turn.
"""

import argparse
import asyncio
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from chaos.mirror import Mirror
from integration.operator.stage import Stage, now
from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.structs import Plan
from pilothouse_kubernetes.client import AGENTRUNS, CONFIGMAPS, PODS, KubernetesClient, Raw
from pilothouse_kubernetes.connection import Connection, find_credentials
from pilothouse_runner.adapters.api_server import ApiServer
from pilothouse_runner.collector import calm_collector
from pilothouse_runner.log_lines import LogLines
from pilothouse_runner.process import Sigterm, open_redis, run_in_cluster
from pilothouse_runner.settings import read_settings
from support.cluster import local_cluster

AT_ONCE = 8
"""Pods that are started, or snapshots that are written, at the same moment."""


def is_of_share(name: str, share: str) -> bool:
    """Tell whether a run is one of `share` (`2/4`: the second of four)."""
    number, of = map(int, share.split("/"))
    return zlib.crc32(name.encode()) % of == number - 1


# ---------------------------------------------------------------- runners


class Runners:
    """The pods of one share of a namespace."""

    def __init__(self, stage: Stage, redis_url: str, share: str) -> None:
        self._stage, self._redis_url, self._share = stage, redis_url, share
        self._lines = LogLines(Path(os.devnull).open("w"), {})  # noqa: SIM115 - as long as the process
        self._sigterm = Sigterm()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def notice(self, kind: str, pod: Raw) -> None:
        """Take an event of a pod."""
        name = pod["metadata"]["name"]
        if kind == "DELETED" or name in self._tasks or not is_of_share(name, self._share):
            return
        self._tasks[name] = asyncio.get_running_loop().create_task(self._live(pod))
        self._tasks[name].add_done_callback(_must_have_gone_well)

    async def _live(self, pod: Raw) -> None:
        async with self._slots:
            await self._stage.start_pod(pod["metadata"]["name"])
            if not self._redis_url:
                return
            plan_name = next(it for it in pod["spec"]["volumes"] if it["name"] == "plan")["configMap"]["name"]
            text = (await self._stage.api.get(CONFIGMAPS, self._stage.namespace, plan_name))["data"][names.PLAN_KEY]
        labels, owner = pod["metadata"]["labels"], pod["metadata"]["ownerReferences"][0]
        settings = read_settings(
            {
                names.ENV_RUN_NAMESPACE: self._stage.namespace,
                names.ENV_RUN_NAME: owner["name"],
                names.ENV_RUN_UID: owner["uid"],
                names.ENV_ATTEMPT: labels[names.LABEL_ATTEMPT],
                names.ENV_PLAN_DIGEST: text_digest(text),
                names.ENV_JOURNAL: "Redis",
                names.ENV_REDIS_URL: self._redis_url,
            }
        )
        cluster = self._stage.cluster
        token = Path(self._stage.folder) / "token"
        server = ApiServer(cluster.url, token, cluster.ca_path)
        plan = Plan.decode(text, settings.plan_digest)
        await run_in_cluster(settings, plan, server, self._lines, self._sigterm, redis=open_redis(settings))


def _must_have_gone_well(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        print(f"a stand-in runner failed: {task.exception()!r}", file=sys.stderr, flush=True)
        os._exit(1)


async def play_runners(stage: Stage, connection: Connection, redis_url: str, share: str) -> None:
    """Play the pods of a share until the process is killed."""
    (stage.folder / "token").write_text(stage.cluster.token)
    await Mirror(connection, PODS, stage.namespace, Runners(stage, redis_url, share).notice).follow()


# ---------------------------------------------------------------- snapshots


def snapshot(round_: int, *, is_odd: bool) -> Raw:
    """Return what a runner would say after its turn `round_`; an odd one asks for the same thing again and again."""
    frames = [
        {"kind": "ToolCall", "turn": turn, "time": now(), "tool": "look", "code": "ok", "seconds": 0.2}
        for turn in range(max(1, round_ - 19), round_ + 1)
    ]
    counts = {
        "toolCalls": {"look": round_},
        "undeclaredToolCalls": 0,
        "toolErrors": 0,
        "identicalCalls": 3 if is_odd else 1,
    }
    spent = {"used": 900 * round_, "input": 800 * round_, "output": 100 * round_, "held": 0, "budget": 100_000_000}
    return {
        "attempt": 1,
        "journalLength": 10 + 6 * round_,
        "step": "talk",
        "visit": 1,
        "turn": round_,
        "iteration": round_,
        "maxIterations": 1000,
        "steps": [{"id": "talk", "visit": 1, "kind": "Agent", "iterations": round_, "tokens": 900 * round_}],
        "tokens": {**spent, "visit": spent},
        "cost": {"usedUSD": "0", "unknown": True, "visit": {"usedUSD": "0", "unknown": True}},
        **counts,
        "visitCounts": counts,
        "lastProgressTime": now(),
        "control": {"observedGeneration": 1, "mode": {"value": "Run", "turn": 0}},
        "effects": {"settled": 0, "unknown": []},
        "trace": frames,
    }


async def play_snapshots(stage: Stage, rate: float, seconds: float, start: int) -> None:
    """Write snapshots evenly over the runs and the time, turns from `start` on; print how many, and the newest turn.

    One run in twenty is odd, others for each start: none has met the rule that minds it before.
    """
    found = sorted(raw["metadata"]["name"] for raw in await stage.runs())
    began, written, under_way = time.monotonic(), 0, set[asyncio.Task[Any]]()
    while (due := began + written / rate) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        number, turn = written % len(found), start + written // len(found)
        body = [{"op": "test", "path": "/status/attempt", "value": 1}]
        body.append({"op": "add", "path": "/status/run", "value": snapshot(turn, is_odd=number % 20 == start % 20)})
        work = stage.api.json_patch(AGENTRUNS, stage.namespace, found[number], body, "status")
        under_way.add(asyncio.get_running_loop().create_task(work))
        if len(under_way) >= AT_ONCE:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        written += 1
    await asyncio.gather(*under_way)
    print(f"{written} {start + written // len(found)} {time.monotonic() - began:.3f}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("runners", "snapshots"))
    parser.add_argument("cluster")
    parser.add_argument("namespace")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--redis", default="", help="the address of the journals; without one pods only seem to run")
    parser.add_argument("--share", default="1/1")
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--start", type=int, default=1)
    given = parser.parse_args()
    calm_collector()
    cluster = local_cluster(given.cluster)
    connection = Connection(find_credentials(str(cluster.kubeconfig)))
    stage = Stage(KubernetesClient(connection), cluster, given.namespace, cluster.kubeconfig, given.folder)
    try:
        if given.part == "runners":
            await play_runners(stage, connection, given.redis, given.share)
        else:
            await play_snapshots(stage, given.rate, given.seconds, given.start)
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
