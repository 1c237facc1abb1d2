"""`python -m chaos`: kill everything at random, and say whether anything was lost or done twice."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from chaos.node import open_node
from chaos.plane import open_plane
from chaos.play import Result, Show, listed
from support.cluster import entered, fresh_cluster
from support.installation import build_images, install

PAUSES = {"plane": (5.0, 18.0), "node": (12.0, 30.0)}
"""Seconds between two kills of services: a kubelet lets a container that dies often wait, and everybody with it."""


def say(text: str) -> None:
    print(text, flush=True)


async def play_plane(show: Show, folder: Path) -> Result:
    with fresh_cluster("control-plane", "chaos") as cluster, entered(cluster):
        async with open_plane(show, cluster, folder, say) as plane:
            return await plane.play()


async def play_node(show: Show, folder: Path) -> Result:
    images = build_images()  # before this process enters a network that has no way out
    with fresh_cluster("node", "chaos") as cluster, entered(cluster):
        say("installing by Helm")
        installation = install(cluster, images)
        async with open_node(show, cluster, installation, folder, say) as node:
            return await node.play()


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--level", choices=["plane", "node"], default="plane")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--width", type=int, default=8, help="runs at a time")
    parser.add_argument("--only", type=int, default=None, help="play this run alone")
    parser.add_argument("--brisk", action="store_true", help="nothing that takes long")
    parser.add_argument("--folder", type=Path, default=None, help="where logs and stories go")
    parser.add_argument("--files", action="store_true", help="journals in files and not in Redis")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(1_000_000)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="pilothouse-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty: journals of other runs would be in the way")
    show = Show(
        seed,
        given.kills,
        given.width,
        level=given.level,
        only=given.only,
        is_on_files=given.files,
        is_brisk=given.brisk,
        pause=PAUSES[given.level],
    )
    say(f"seed {seed}, {show.kills} kills, everything is in {folder}")
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # the cluster goes with us
    result = asyncio.run((play_plane if given.level == "plane" else play_node)(show, folder))
    say(f"\nseed {seed}: {result.kills.total()} kills in {time.monotonic() - began:.0f} s ({listed(result.kills)})")
    say(f"{result.runs} runs ({listed(result.ends)})")
    say(
        f"{result.executions} executions on the tool server; sweeps found {result.drift} things that watches had missed"
    )
    say("violations: " + ("none" if result.is_good else f"{len(result.violations)}: {', '.join(result.violations)}"))
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
