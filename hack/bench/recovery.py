#!/usr/bin/env python3
"""`make bench-recovery`: from the death of a runner to the run's next published turn, beside the start of a pod.

A real node, the project installed by Helm, the scripted model. At a random moment of a run its runner's process gets
SIGKILL; what is measured is the time until a watch of the AgentRun shows a turn that was made after it. Beside each
such run the same pod starts with `sleep` in place of the runner, from POST until a watch shows it Running: that is
what no operator can spare. Exits with 1 when the first turn takes longer than such a start and a second, at the median
or at the 99th percentile.
"""

import argparse
import os
import queue
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import kubernetes.client as k8s
import kubernetes.config
import kubernetes.watch
import yaml

from pilothouse_api import names
from support.cluster import LocalCluster, entered, fresh_cluster, start_cluster
from support.installation import Installation, build_images, install, wait_until

EXTRA_SECONDS = 1.0
"""How much longer than a pod's start the next turn may take (operations.md §4)."""
TURN_SECONDS = 0.1
TURNS = 80
EARLIEST_SECONDS, LATEST_SECONDS = 0.2, 4.0
"""When the process is killed, after the run's first published turn; all of its turns take twice as long."""
PATIENCE_SECONDS = 120.0
NAMESPACE = "recovery"
OURS = {"apiVersion": names.API_VERSION}
RUNS = (names.GROUP, names.VERSION, NAMESPACE, "agentruns")

Raw = dict[str, Any]


def workflow() -> Raw:
    """Return a workflow that makes cheap turns, one call of a tool that only reads in each."""
    calls = [
        {
            "toolCalls": [{"name": "look", "arguments": {"at": f"s{turn}"}}],
            "usage": {"input": 10, "output": 5},
            "delaySeconds": TURN_SECONDS,
        }
        for turn in range(TURNS)
    ]
    script = yaml.safe_dump({"turns": [*calls, {"text": "done"}], "repeat": "None"})
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    agent = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "maxOutputTokens": 100, "script": {"inline": script}},
        "steering": {"inline": "Look at everything."},
        "limits": {"maxIterations": TURNS + 1, "maxToolCalls": TURNS + 1},
        "tools": [{"name": "look", "description": "Looks.", "step": "look", "parameters": parameters}],
    }
    look = {"id": "look", "kind": "Router", "description": "Looks.", "toolOnly": True, "router": {"match": "at"}}
    spec = {"steps": [{"id": "talk", "kind": "Agent", "agent": agent}, look]}
    return {**OURS, "kind": "Workflow", "metadata": {"name": "looking"}, "spec": spec}


# ---------------------------------------------------------------- what is seen


@dataclass(frozen=True)
class Seen:
    """One object as a watch showed it, and when (seconds of this process's clock, and of the wall)."""

    at: float
    wall: float
    raw: Raw


class Watcher:
    """Watches the objects of one kind from the beginning on, in a thread of its own."""

    def __init__(self, list_them: Callable[..., Any], *arguments: str) -> None:
        self._seen: queue.Queue[Seen] = queue.Queue()
        self._list, self._arguments = list_them, arguments
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            stream = kubernetes.watch.Watch().stream(self._list, *self._arguments, timeout_seconds=600)
            for event in stream:
                self._seen.put(Seen(time.monotonic(), time.time(), event["raw_object"]))

    def wait(self, what: str, is_it: Callable[[Raw], bool]) -> Seen:
        """Return the first object from now on that is the one; raises AssertionError."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                seen = self._seen.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not seen within {PATIENCE_SECONDS:g} s: {what}") from None
            if is_it(seen.raw):
                return seen


def is_running(raw_pod: Raw) -> bool:
    """Tell whether a pod's container runs."""
    return any("running" in one.get("state", {}) for one in raw_pod["status"].get("containerStatuses") or ())


def has_ended(raw_pod: Raw) -> bool:
    """Tell whether a pod's container has ended."""
    return raw_pod["status"].get("phase") in ("Succeeded", "Failed")


def turn_after(raw_run: Raw, wall: float) -> float | None:
    """Return when the first turn was made that a run shows and that is younger than `wall`, or None."""
    frames = raw_run.get("status", {}).get("run", {}).get("trace") or ()
    made = (datetime.fromisoformat(frame["time"]).timestamp() for frame in frames if frame["kind"] == "Iteration")
    return min((at for at in made if at > wall), default=None)


def find_process(run_uid: str, attempt: int) -> int:
    """Return the process of an attempt on this machine, which is the node."""
    wanted = {f"{names.ENV_RUN_UID}={run_uid}".encode(), f"{names.ENV_ATTEMPT}={attempt}".encode()}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("the runner's process is not on this machine")


# ---------------------------------------------------------------- samples


@dataclass(frozen=True)
class Sample:
    """Seconds: a pod's start, and from the kill to each thing that follows."""

    start: float
    noticed: float
    made: float
    runs: float
    turn: float
    published: float

    @property
    def extra(self) -> float:
        """How much longer than the pod's start the next published turn took."""
        return self.published - self.start

    def line(self) -> str:
        """Return it for a person who waits."""
        return (
            f"pod's start {self.start:5.2f} s; killed: noticed {self.noticed:5.2f}, pod made {self.made:5.2f},"
            f" runs {self.runs:5.2f}, next turn {self.published:5.2f} s"
        )


class Bench:
    """A namespace of a real node, in which runs are started and killed one after another."""

    def __init__(self, installation: Installation, chance: random.Random) -> None:
        client = kubernetes.config.new_client_from_config(str(installation.cluster.kubeconfig))
        self._pods, self._objects = k8s.CoreV1Api(client), k8s.CustomObjectsApi(client)
        self._seen_pods = Watcher(self._pods.list_namespaced_pod, NAMESPACE)
        self._seen_runs = Watcher(self._objects.list_namespaced_custom_object, *RUNS)
        self._chance = chance
        installation.apply(NAMESPACE, workflow())
        self._sleeper = self._build_sleeper()

    def _build_sleeper(self) -> Raw:
        """Return the spec of a runner's pod with nothing in it that would have to begin."""
        self._begin("warm")
        first = self._pod("the first pod to run", names.pod_name("warm", 1), is_running).raw["spec"]
        self._end("warm")
        (container,) = first["containers"]
        volumes = [{"name": one["name"], "emptyDir": {}} if "configMap" in one else one for one in first["volumes"]]
        spec = {name: value for name, value in first.items() if name != "nodeName"}
        return {**spec, "containers": [{**container, "command": ["sleep", "infinity"]}], "volumes": volumes}

    def take(self, number: int) -> Sample:
        """Start a pod alone; then start a run, kill its runner, and wait for the next turn."""
        name = f"r{number}"
        start = self._start_alone(f"alone-{number}")
        uid = self._begin(name)
        self._seen_runs.wait("the first turn", lambda run: run["metadata"]["uid"] == uid and has_turn(run))
        pid = find_process(uid, 1)
        time.sleep(self._chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS))
        killed, wall = time.monotonic(), time.time()
        os.kill(pid, signal.SIGKILL)
        first, second = (names.pod_name(name, attempt) for attempt in (1, 2))
        noticed = self._pod("the end of the pod", first, has_ended)
        made = self._pod("the next attempt's pod", second, lambda pod: True)
        runs = self._pod("the next attempt's pod to run", second, is_running)
        shown = self._seen_runs.wait(
            "the next turn", lambda run: run["metadata"]["uid"] == uid and turn_after(run, wall) is not None
        )
        turn = turn_after(shown.raw, wall)
        assert turn is not None
        self._end(name)
        after = [seen.at - killed for seen in (noticed, made, runs)]
        return Sample(start, after[0], after[1], after[2], turn - wall, shown.at - killed)

    def _begin(self, name: str) -> str:
        body = {**OURS, "kind": "AgentRun", "metadata": {"name": name}, "spec": {"workflowRef": {"name": "looking"}}}
        return str(self._objects.create_namespaced_custom_object(*RUNS, body)["metadata"]["uid"])

    def _end(self, name: str) -> None:
        """Delete a run and wait until its pods are gone: what is measured next shall have the node for itself."""
        self._objects.delete_namespaced_custom_object(*RUNS, name)
        self._wait_empty()

    def _wait_empty(self) -> None:
        wait_until(lambda: not self._pods.list_namespaced_pod(NAMESPACE).items, seconds=PATIENCE_SECONDS)

    def _pod(self, what: str, name: str, is_it: Callable[[Raw], bool]) -> Seen:
        return self._seen_pods.wait(what, lambda pod: pod["metadata"]["name"] == name and is_it(pod))

    def _start_alone(self, name: str) -> float:
        """Return how long such a pod takes to start."""
        began = time.monotonic()
        self._pods.create_namespaced_pod(NAMESPACE, {"metadata": {"name": name}, "spec": self._sleeper})
        running = self._pod("a pod that only sleeps to run", name, is_running)
        self._pods.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
        self._wait_empty()
        return running.at - began


def has_turn(raw_run: Raw) -> bool:
    """Tell whether a run has published a turn."""
    return bool(raw_run.get("status", {}).get("run", {}).get("turn"))


# ---------------------------------------------------------------- the report

ROWS = (
    ("a pod's start, with sleep in it", "start"),
    ("killed, to the pod's end seen", "noticed"),
    ("killed, to the next pod made", "made"),
    ("killed, to the next pod running", "runs"),
    ("killed, to the next turn made", "turn"),
    ("killed, to the next turn published", "published"),
    ("that beside the pod's start of its run", "extra"),
)


def percentile(values: list[float], percent: int) -> float:
    """Return the smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def print_table(samples: list[Sample]) -> bool:
    """Print what was measured; return whether the target is met."""
    print(f"\n{len(samples)} runners killed{'':26} p50       p99")
    for title, name in ROWS:
        values = [getattr(sample, name) for sample in samples]
        print(f"{title:40} {percentile(values, 50):6.2f} s  {percentile(values, 99):6.2f} s")
    is_met = True
    for percent in (50, 99):
        start, turn = (percentile([getattr(s, name) for s in samples], percent) for name in ("start", "published"))
        most = start + EXTRA_SECONDS
        is_met = is_met and turn <= most
        verdict = "kept" if turn <= most else "MISSED"
        print(f"p{percent}: a turn after {turn:.2f} s, at most a pod's start and a second, {most:.2f} s: {verdict}")
    ratio = statistics.median(sample.published / sample.start for sample in samples)
    print(f"the next turn takes {ratio:.2f} times a pod's start (median)")
    return is_met


@contextmanager
def opened(cluster_name: str | None) -> Iterator[Installation]:
    """A node with the project on it, in whose network this process is; a fresh one where none is named."""
    images = build_images()  # before this process enters a network that has no way out
    if cluster_name:
        with entered(start_cluster("node", cluster_name)) as cluster:
            yield prepare(cluster, images)
    else:
        with fresh_cluster("node", "recovery") as cluster, entered(cluster):
            yield prepare(cluster, images)


def prepare(cluster: LocalCluster, images: dict[str, dict[str, str]]) -> Installation:
    """Install the project, with journals in its Redis, and make the namespace of the runs."""
    installation = install(cluster, images)
    installation.make_namespace(NAMESPACE)
    return installation


def main() -> int:
    """Take the samples, print them as they come, and judge them."""
    parser = argparse.ArgumentParser(prog="bench-recovery", description=__doc__)
    parser.add_argument("--samples", type=int, default=36)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--cluster", help="a standing cluster of hack/cluster; default: a fresh one")
    given = parser.parse_args()
    print(f"seed {given.seed}; starting a node", flush=True)
    with opened(given.cluster or os.environ.get("PILOTHOUSE_CLUSTER")) as installation:
        bench = Bench(installation, random.Random(given.seed))
        samples = []
        for number in range(1, given.samples + 1):
            samples.append(bench.take(number))
            print(f"{number:3}/{given.samples}  {samples[-1].line()}", flush=True)
        return 0 if print_table(samples) else 1


if __name__ == "__main__":
    sys.exit(main())
