#!/usr/bin/env python3
"""`make bench-recovery`: from the death of a runner to the run's next published turn, beside the start of a pod.

A real node, the project installed by Helm, the scripted model. At a random moment of a run its runner's process gets
SIGKILL; what is measured is the time until a watch of the AgentRun shows a turn that was made after it. Beside each
such run the same pod starts with `sleep` in place of the runner, from POST until a watch shows it Running: that is
what no operator can spare, and neither can it the kubelet's look at its containers, once a second, before which nobody
knows of a death. A sample that could not be taken says why and is taken again. Exits with 1 when, from the moment on
that the API server shows the death, the turn takes longer than such a start and a second, at the median or at the 99th
percentile; from the kill itself it is printed too.
"""

import argparse
import os
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
import kubernetes.client.exceptions
import kubernetes.config
import kubernetes.watch
import urllib3.exceptions
import yaml

from pilothouse_api import names
from support.cluster import LocalCluster, entered, fresh_cluster, start_cluster
from support.installation import Installation, build_images, install, wait_until

EXTRA_SECONDS = 1.0
"""How much longer than a pod's start the next turn may take (operations.md §4)."""
TURN_SECONDS = 0.03
TURNS = 120
EARLIEST_SECONDS, LATEST_SECONDS = 0.2, 2.0
"""When the process is killed, after the run's first published turn; all of its turns take twice as long."""
PATIENCE_SECONDS = 60.0
TRIES = 3
"""How often a sample is taken until it is one."""
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


class Missed(Exception):
    """A sample could not be taken: why."""


# ---------------------------------------------------------------- what is seen


@dataclass(frozen=True)
class Seen:
    """One object as a watch showed it, and when (seconds of this process's clock)."""

    at: float
    raw: Raw


class Watcher:
    """Watches the objects of one kind from the beginning on, in a thread of its own, and keeps what it was shown."""

    def __init__(self, list_them: Callable[..., Any], *arguments: str) -> None:
        self._seen: list[Seen] = []
        self._news = threading.Condition()
        self._list, self._arguments = list_them, arguments
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            stream = kubernetes.watch.Watch().stream(self._list, *self._arguments, timeout_seconds=600)
            try:
                for event in stream:
                    with self._news:
                        self._seen.append(Seen(time.monotonic(), event["raw_object"]))
                        self._news.notify_all()
            except (kubernetes.client.exceptions.ApiException, urllib3.exceptions.HTTPError):
                time.sleep(0.1)  # a watch may break at any time; a new one begins with all that is there

    def forget(self) -> None:
        """Forget what was shown until now."""
        with self._news:
            self._seen.clear()

    def wait(self, what: str, is_it: Callable[[Raw], bool]) -> Seen:
        """Return the first of what was shown that is the one, or wait for it; raises Missed."""
        ends, looked_at = time.monotonic() + PATIENCE_SECONDS, 0
        with self._news:
            while True:
                for seen in self._seen[looked_at:]:
                    if is_it(seen.raw):
                        return seen
                looked_at = len(self._seen)
                if not self._news.wait(ends - time.monotonic()):
                    raise Missed(f"not seen within {PATIENCE_SECONDS:g} s: {what}")


def is_running(raw_pod: Raw) -> bool:
    """Tell whether a pod's container runs."""
    return any("running" in one.get("state", {}) for one in raw_pod["status"].get("containerStatuses") or ())


def has_ended(raw_pod: Raw) -> bool:
    """Tell whether a pod's container has ended."""
    return any("terminated" in one.get("state", {}) for one in raw_pod["status"].get("containerStatuses") or ())


def turn_after(raw_run: Raw, wall: float) -> float | None:
    """Return when the first turn was made that a run shows and that is younger than `wall`, or None."""
    frames = raw_run.get("status", {}).get("run", {}).get("trace") or ()
    made = (datetime.fromisoformat(frame["time"]).timestamp() for frame in frames if frame["kind"] == "Iteration")
    return min((at for at in made if at > wall), default=None)


def find_process(run_uid: str, attempt: int) -> int | None:
    """Return the process of an attempt on this machine, which is the node; None where there is none any more."""
    wanted = {f"{names.ENV_RUN_UID}={run_uid}".encode(), f"{names.ENV_ATTEMPT}={attempt}".encode()}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                return int(folder.name)
        except OSError:
            continue
    return None


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
    def shown(self) -> float:
        """From the death as the API server shows it to the next published turn: what is the project's, and a start."""
        return self.published - self.noticed

    @property
    def extra(self) -> float:
        """How much longer than the pod's start that took."""
        return self.shown - self.start

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
        self._clear("warm")
        (container,) = first["containers"]
        volumes = [{"name": one["name"], "emptyDir": {}} if "configMap" in one else one for one in first["volumes"]]
        spec = {name: value for name, value in first.items() if name != "nodeName"}
        return {**spec, "containers": [{**container, "command": ["sleep", "infinity"]}], "volumes": volumes}

    def take(self, number: int) -> Sample:
        """Return a sample; raises Missed when none could be taken however often it was tried."""
        said: list[str] = []
        for one in range(1, TRIES + 1):
            name = f"r{number}-{one}"
            self._seen_pods.forget()
            self._seen_runs.forget()
            try:
                start = self._start_alone(f"alone-{number}-{one}")
                return self._kill(name, start)
            except Missed as missed:
                said.append(str(missed))
                print(f"{number:3}  not a sample: {missed}", flush=True)
            finally:
                self._clear(name)
        raise Missed(f"sample {number} could not be taken in {TRIES} tries: {'; '.join(said)}")

    def _kill(self, name: str, start: float) -> Sample:
        """Start a run, kill its runner, and wait for the next turn."""
        uid = self._begin(name)
        self._run("the first turn", uid, has_turn)
        time.sleep(self._chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS))
        pid = find_process(uid, 1)
        killed, wall = time.monotonic(), time.time()
        try:
            if pid is None:
                raise ProcessLookupError
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise Missed(f"the runner had ended before it was killed; {self._state(name)}") from None
        first, second = (names.pod_name(name, attempt) for attempt in (1, 2))
        noticed = self._pod("the end of the pod", first, has_ended)
        made = self._pod("the next attempt's pod", second, lambda pod: True)
        runs = self._pod("the next attempt's pod to run", second, is_running)
        shown = self._run("the next turn", uid, lambda run: turn_after(run, wall) is not None)
        turn = turn_after(shown.raw, wall)
        assert turn is not None
        after = [seen.at - killed for seen in (noticed, made, runs)]
        return Sample(start, after[0], after[1], after[2], turn - wall, shown.at - killed)

    def _state(self, name: str) -> str:
        """Return what a run says of itself, for a person who asks why there is no sample."""
        status = self._objects.get_namespaced_custom_object(*RUNS, name).get("status", {})
        turn = status.get("run", {}).get("turn")
        return f"the run is {status.get('phase')}, attempt {status.get('attempt')}, turn {turn}"

    def _begin(self, name: str) -> str:
        body = {**OURS, "kind": "AgentRun", "metadata": {"name": name}, "spec": {"workflowRef": {"name": "looking"}}}
        return str(self._objects.create_namespaced_custom_object(*RUNS, body)["metadata"]["uid"])

    def _clear(self, name: str) -> None:
        """Delete a run and wait until all pods are gone: what is measured next shall have the node for itself."""
        try:
            self._objects.delete_namespaced_custom_object(*RUNS, name)
        except kubernetes.client.exceptions.ApiException as error:
            if error.status != 404:
                raise
        self._wait_empty()

    def _wait_empty(self) -> None:
        wait_until(lambda: not self._pods.list_namespaced_pod(NAMESPACE).items, seconds=PATIENCE_SECONDS)

    def _pod(self, what: str, name: str, is_it: Callable[[Raw], bool]) -> Seen:
        return self._seen_pods.wait(what, lambda pod: pod["metadata"]["name"] == name and is_it(pod))

    def _run(self, what: str, uid: str, is_it: Callable[[Raw], bool]) -> Seen:
        return self._seen_runs.wait(what, lambda run: run["metadata"]["uid"] == uid and is_it(run))

    def _start_alone(self, name: str) -> float:
        """Return how long a pod takes to start that has nothing to begin."""
        began = time.monotonic()
        self._pods.create_namespaced_pod(NAMESPACE, {"metadata": {"name": name}, "spec": self._sleeper})
        try:
            return self._pod("a pod that only sleeps to run", name, is_running).at - began
        finally:
            self._pods.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
            self._wait_empty()


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
    ("pod's end seen, to the next turn published", "shown"),
    ("that without its pod's start", "extra"),
)


def percentile(values: list[float], percent: int) -> float:
    """Return the smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def print_table(samples: list[Sample]) -> bool:
    """Print what was measured; return whether the target is met."""
    print(f"\n{len(samples)} runners killed{'':30} p50       p99")
    for title, name in ROWS:
        values = [getattr(sample, name) for sample in samples]
        print(f"{title:44} {percentile(values, 50):6.2f} s  {percentile(values, 99):6.2f} s")
    is_met = True
    for since, name in (("the kill", "published"), ("the pod's end seen", "shown")):
        for percent in (50, 99):
            start, turn = (percentile([getattr(s, one) for s in samples], percent) for one in ("start", name))
            is_kept = turn <= start + EXTRA_SECONDS
            is_met = is_met and (is_kept or name == "published")
            said = f"{turn:.2f} s, a pod's start and a second are {start + EXTRA_SECONDS:.2f} s"
            print(f"p{percent} from {since}: {said}: {'kept' if is_kept else 'missed'}")
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
    installation.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")  # of an earlier time
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
        try:
            for number in range(1, given.samples + 1):
                samples.append(bench.take(number))
                print(f"{number:3}/{given.samples}  {samples[-1].line()}", flush=True)
        except Missed as missed:
            print(missed, file=sys.stderr)
            return 1
        return 0 if print_table(samples) else 1


if __name__ == "__main__":
    sys.exit(main())
