"""The project installed on a cluster as a person would: images, `helm install`, `kubectl`."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster import ForeignCluster

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "pilothouse-system"
DEPLOYMENT = "pilothouse-operator"
REDIS = "pilothouse-redis"
JUDGE = "pilothouse-judge"

JUDGE_MODELS = [
    {
        "name": "watchful",
        "model": "scripted",
        "timeoutSeconds": 300,
        # Its first verdict takes so long that a test has all the time to take the judge away meanwhile.
        "script": """
            turns:
            - {match: {turn: 1}, delaySeconds: 200, text: '{"passed": true, "reason": ""}'}
            - {text: '{"passed": true, "reason": ""}'}
            repeat: Last
        """,
    },
]


@dataclass(frozen=True)
class Installation:
    """A cluster with the operator on it."""

    cluster: ForeignCluster
    images: dict[str, str]

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 270) -> str:
        """Run kubectl; raises AssertionError with what it printed when it fails."""
        return self.cluster.run_tool("kubectl", *arguments, stdin=stdin, timeout=timeout)

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return why it was refused; raises when it was not."""
        try:
            printed = self.kubectl(*arguments, stdin=stdin)
        except AssertionError as error:
            return str(error)
        raise AssertionError(f"kubectl {' '.join(arguments)} was not refused: {printed}")

    def apply(self, namespace: str, *manifests: dict[str, Any]) -> None:
        """Apply objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(items))

    def apply_example(self, namespace: str, name: str) -> None:
        """Apply a folder of examples, as the README says."""
        self.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples" / name))

    def run(self, namespace: str, name: str) -> dict[str, Any]:
        """Return an AgentRun."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "prun", name, "-n", namespace, "-o", "json"))
        return found

    def control(self, namespace: str, name: str, control: dict[str, Any]) -> None:
        """Patch `spec.control` as a person would."""
        patch = json.dumps({"spec": {"control": control}})
        self.kubectl("patch", "prun", name, "-n", namespace, "--type=merge", "-p", patch)

    def wait_finished(self, namespace: str, name: str, seconds: int = 240) -> dict[str, Any]:
        """Wait for the end of a run by `kubectl wait` and return the run."""
        wait = ("wait", "--for=condition=Finished", f"prun/{name}", "-n", namespace, f"--timeout={seconds}s")
        self.kubectl(*wait, timeout=seconds + 30)
        return self.run(namespace, name)

    def wait_for(self, namespace: str, name: str, path: str, value: str, seconds: int = 240) -> dict[str, Any]:
        """Wait until a JSON path of a run has a value, and return the run."""
        wait = ("wait", f"--for=jsonpath={{{path}}}={value}", f"prun/{name}", "-n", namespace, f"--timeout={seconds}s")
        self.kubectl(*wait, timeout=seconds + 30)
        return self.run(namespace, name)

    def make_namespace(self, name: str) -> None:
        """Make a namespace with a runner's ServiceAccount and rights, as the install page says."""
        self.kubectl("create", "namespace", name)
        self.kubectl("create", "serviceaccount", "prun", "-n", name)
        role = json.loads(self.kubectl("get", "role", "prun", "-n", SYSTEM, "-o", "json"))
        rights = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "prun"}}
        subject = {"kind": "ServiceAccount", "name": "prun", "namespace": name}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "prun"}
        self.apply(
            name,
            {**rights, "kind": "Role", "rules": role["rules"]},
            {**rights, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]},
        )
        if self.kubectl("get", "service", REDIS, "-n", SYSTEM, "--ignore-not-found", "-o", "name").strip():
            self._make_redis_login(name)

    def redis(self, *command: str) -> str:
        """Run a command of Redis as its administrator and return what redis-cli prints."""
        login = ("--no-auth-warning", "--user", "admin", "--pass", self.secret(SYSTEM, f"{REDIS}-admin")["password"])
        return self.kubectl("exec", f"{REDIS}-0", "-n", SYSTEM, "--", "redis-cli", *login, *command)

    def secret(self, namespace: str, name: str) -> dict[str, str]:
        """Return the values of a Secret."""
        data = json.loads(self.kubectl("get", "secret", name, "-n", namespace, "-o", "json"))["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def _make_redis_login(self, namespace: str) -> None:
        """Do what the chart does for a namespace that it knows: a user of Redis, and its login as a Secret."""
        users = self.secret(SYSTEM, f"{REDIS}-admin")["users.acl"].splitlines()
        rules = next(line for line in users if f" ns-{SYSTEM} " in line).replace(SYSTEM, namespace).split()
        password = uuid.uuid4().hex
        hashed = hashlib.sha256(password.encode()).hexdigest()
        rules = [f"#{hashed}" if rule.startswith("#") else rule for rule in rules[1:]]
        assert self.redis("ACL", "SETUSER", *rules).strip() == "OK"
        login = {"username": f"ns-{namespace}", "password": password}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": REDIS}, "stringData": login}
        self.apply(namespace, secret)

    def describe(self, namespace: str | None) -> str:
        """Return what a person looks at first when something is wrong."""
        shown = []
        if namespace:
            shown.append(self._try("get", "prun,pods,events", "-o", "wide", "-n", namespace))
            shown.append(self._try("get", "prun", "-o", "yaml", "-n", namespace))
            pods = self._try("get", "pods", "-n", namespace, "-o", "name").split()
            shown.extend(f"--- {pod}\n" + self._try("logs", pod, "-n", namespace, "--tail=40") for pod in pods)
        shown.append(self._try("logs", f"deployment/{DEPLOYMENT}", "-n", SYSTEM, "--tail=60"))
        return "\n".join(shown)[-30000:]

    def _try(self, *arguments: str) -> str:
        try:
            return self.kubectl(*arguments)
        except AssertionError as error:
            return str(error)


def build_images() -> dict[str, dict[str, str]]:
    """Build what has changed; return name and archive of each image."""
    command = [ROOT / "hack" / "images" / "build", "all", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def install(cluster: ForeignCluster, built: dict[str, dict[str, str]]) -> Installation:
    """Load the images, install the chart, wait until the operator is ready."""
    cluster.load(*(Path(image["archive"]) for image in built.values()))
    images = {name: image["image"] for name, image in built.items()}
    cluster.run_tool(
        *("helm", "upgrade", "--install", "pilothouse", str(ROOT / "charts" / "pilothouse")),
        *("--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout", "5m"),
        *("--set", f"operator.image={images['operator']}", "--set", f"runner.image={images['runner']}"),
        *("--set", f"redis.image={images['redis']}"),
        *(
            "--set-json",
            f"judge.models={json.dumps(JUDGE_MODELS)}",
            "--set",
            "judge.replicas=1",
            "--set",
            "api.replicas=1",
        ),
        timeout=360,
    )
    installation = Installation(cluster, images)
    wait_until(lambda: bool(installation.kubectl("get", "lease", "-n", SYSTEM, "-o", "name").strip()))
    return installation


def wait_until(is_true: Any, seconds: float = 120, every: float = 0.2) -> None:
    """Return when a claim about the world has become true; raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not true after {seconds} s"
        time.sleep(every)
