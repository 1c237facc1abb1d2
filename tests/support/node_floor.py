"""What so many pods cost the node alone: the same pods as runs have, which do nothing.

A figure of many runs on a node says little by itself: most of it is pods that are made, started and ended, and how
long that takes is the machine's affair. Beside this floor it says what a run adds to the pod that it needs.
"""

import copy
import json
import time
from datetime import datetime
from typing import Any

from support.installation import Installation

LABEL = "node-floor"
NOTHING = ["python3", "-S", "-c", "pass"]
GIVEN_BY_THE_CLUSTER = ("nodeName", "serviceAccount", "priority", "preemptionPolicy")


def measure_node_floor(
    installation: Installation, namespace: str, pod: dict[str, Any], count: int, patience: int
) -> float:
    """Return the seconds from asking for `count` copies of a runner's pod at once until the last of them has ended.

    The copies have its image, spec and volumes, each with a ConfigMap of its own, and end as soon as they run. They are
    gone when this returns. Raises AssertionError when they have not ended within `patience` seconds.
    """
    names = [f"floor-{number:03}" for number in range(count)]
    plan = installation.kubectl("get", "configmap", _plan_of(pod["spec"]), "-n", namespace, "-o", "json")
    installation.apply(namespace, *(_plan(json.loads(plan), name) for name in names))
    made = {"apiVersion": "v1", "kind": "List", "items": [_pod(pod, name) for name in names]}
    began = time.time()
    installation.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(made), timeout=patience)
    wait = ("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod", "-l", LABEL, f"--timeout={patience}s")
    installation.kubectl(*wait, "-n", namespace, timeout=patience + 30)
    listed = json.loads(installation.kubectl("get", "pods", "-l", LABEL, "-n", namespace, "-o", "json"))["items"]
    assert len(listed) == count
    took = max(ended_at(one) for one in listed) - began
    installation.kubectl("delete", "pod,configmap", "-l", LABEL, "-n", namespace, timeout=patience)
    return took


def ended_at(pod: dict[str, Any]) -> float:
    """Return when the container of a pod has ended. `kubectl wait` tells it later, by a tenth of a second a pod."""
    (container,) = pod["status"]["containerStatuses"]
    return datetime.fromisoformat(container["state"]["terminated"]["finishedAt"]).timestamp()


def _plan_of(spec: dict[str, Any]) -> str:
    return next(str(volume["configMap"]["name"]) for volume in spec["volumes"] if volume["name"] == "plan")


def _plan(raw: dict[str, Any], name: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {LABEL: "plan"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": raw["data"]}


def _pod(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a copy that is nobody's: without the labels that the operator watches, and without an owner."""
    spec = copy.deepcopy({field: value for field, value in raw["spec"].items() if field not in GIVEN_BY_THE_CLUSTER})
    for volume in spec["volumes"]:
        if volume["name"] == "plan":
            volume["configMap"]["name"] = name
    spec["containers"][0]["command"] = NOTHING
    metadata = {"name": name, "labels": {LABEL: "pod"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
