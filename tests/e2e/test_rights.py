"""What a runner's token can do, tried from inside a real pod, and what people may do by the chart's roles."""

import json

import pytest

from e2e.test_steering import apply_workflow, start
from support.installation import SYSTEM, Installation

CALL = """
import json, ssl, sys, urllib.request
method, path, content_type, body = sys.argv[1:5]
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
request = urllib.request.Request(
    "https://kubernetes.default.svc" + path,
    method=method,
    data=body.encode() or None,
    headers={"Authorization": "Bearer " + open(folder + "/token").read(), "Content-Type": content_type},
)
try:
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=folder + "/ca.crt")) as answer:
        print(json.dumps({"status": answer.status}))
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code, "message": json.load(error).get("message", "")}))
"""


class Pod:
    """A live runner's pod, from which calls are made with its own token."""

    def __init__(self, installation: Installation, namespace: str, run: str) -> None:
        self.installation, self.namespace, self.run = installation, namespace, run
        self.base = f"/apis/pilothouse.dev/v1alpha1/namespaces/{namespace}/agentruns"

    def call(self, method: str, path: str, body: object = "", content_type: str = "application/json") -> int:
        text = body if isinstance(body, str) else json.dumps(body)
        command = ("exec", f"{self.run}-1", "-n", self.namespace, "--", "python3", "-c", CALL)
        printed = self.installation.kubectl(*command, method, path, content_type, text)
        return int(json.loads(printed)["status"])

    def patch_status(self, run: str, *operations: dict[str, object]) -> int:
        return self.call("PATCH", f"{self.base}/{run}/status", operations, "application/json-patch+json")


def test_a_runner_may_report_its_own_run_and_nothing_else(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "mine", lookup_seconds=30)
    start(installation, namespace, "other", lookup_seconds=30)
    for name in ("mine", "other"):
        installation.wait_for(namespace, name, ".status.run.step", "investigate")
    pod = Pod(installation, namespace, "mine")
    snapshot = installation.run(namespace, "mine")["status"]["run"]
    attempt = {"op": "test", "path": "/status/attempt", "value": 1}
    add_run = {"op": "add", "path": "/status/run", "value": snapshot}

    got = {
        "own snapshot": pod.patch_status("mine", attempt, add_run),
        "stale attempt": pod.patch_status("mine", {**attempt, "value": 7}, add_run),
        "own phase": pod.patch_status("mine", {"op": "add", "path": "/status/phase", "value": "Succeeded"}),
        "another's snapshot": pod.patch_status("other", attempt, add_run),
        "own spec": pod.call(
            "PATCH",
            f"{pod.base}/mine",
            {"spec": {"control": {"steer": {"x": {"message": "obey"}}}}},
            "application/merge-patch+json",
        ),
        "delete": pod.call("DELETE", f"{pod.base}/other"),
        "secrets": pod.call("GET", f"/api/v1/namespaces/{namespace}/secrets"),
        "pods": pod.call("GET", f"/api/v1/namespaces/{namespace}/pods"),
        "other namespace": pod.call("GET", pod.base.replace(namespace, SYSTEM)),
        "own namespace": pod.call("GET", pod.base),
    }

    assert got == {
        "own snapshot": 200,
        "stale attempt": 422,
        "own phase": 422,
        "another's snapshot": 422,
        "own spec": 403,
        "delete": 403,
        "secrets": 403,
        "pods": 403,
        "other namespace": 403,
        "own namespace": 200,
    }


def test_a_role_that_an_author_gave_does_not_open_the_wall(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    installation.kubectl(
        "create", "rolebinding", "lent", "--clusterrole=admin", f"--serviceaccount={namespace}:prun", "-n", namespace
    )
    rule = ("--verb=*", "--resource=agentruns.pilothouse.dev", "-n", namespace)
    installation.kubectl("create", "role", "all-runs", *rule)
    installation.kubectl(
        "create", "rolebinding", "all-runs", "--role=all-runs", f"--serviceaccount={namespace}:prun", "-n", namespace
    )
    start(installation, namespace, "mine", lookup_seconds=30)
    installation.wait_for(namespace, "mine", ".status.run.step", "investigate")
    pod = Pod(installation, namespace, "mine")

    steer = {"spec": {"control": {"steer": {"x": {"message": "obey"}}}}}
    assert pod.call("PATCH", f"{pod.base}/mine", steer, "application/merge-patch+json") in (403, 422)
    assert pod.call("DELETE", f"{pod.base}/mine") in (403, 422)
    image = installation.images["runner"]
    evil = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evil", "labels": {"app.kubernetes.io/managed-by": "pilothouse"}},
        "spec": {"serviceAccountName": "prun", "containers": [{"name": "x", "image": image}]},
    }
    assert pod.call("POST", f"/api/v1/namespaces/{namespace}/pods", evil) in (403, 422)


CALL_ID = "t1-0-9f2c11ab"


class People:
    """Persons who call as themselves, each bound to one role in a namespace."""

    def __init__(self, installation: Installation, namespace: str) -> None:
        self.installation, self.namespace = installation, namespace

    def bind(self, person: str, role: str, *by: str) -> None:
        binding = ("create", "rolebinding", f"{person}-{role}", f"--clusterrole={role}", f"--user={person}")
        self.installation.kubectl(*binding, "-n", self.namespace, *by)

    def may(self, person: str, run: str, **spec: object) -> bool:
        """Tell whether a person may patch a run so; who may not reads why."""
        patch = ("patch", "prun", run, "-n", self.namespace, "--type=merge", "-p", json.dumps({"spec": spec}))
        try:
            self.installation.kubectl(*patch, f"--as={person}")
        except AssertionError as error:
            assert any(words in str(error) for words in ("may not", "cannot", "own user name")), error
            return False
        return True

    def may_decide(self, person: str, run: str, **decision: str) -> bool:
        return self.may(person, run, control={"approvals": {CALL_ID: {"decision": "Approve", **decision}}})


@pytest.fixture
def people(installation: Installation, namespace: str) -> People:
    people = People(installation, namespace)
    roles = {"vic": "view", "ed": "edit", "ada": "admin", "ann": "pilothouse-approver", "lim": "pilothouse-limiter"}
    for person, role in roles.items():
        people.bind(person, role)
    return people


def awaiting(installation: Installation, namespace: str, name: str) -> str:
    """Make a run that waits for a decision, as its status says; nothing advances it."""
    start(installation, namespace, name)
    pending = [{"callId": CALL_ID, "tool": "refund", "requestedAt": "2026-01-01T00:00:00Z"}]
    patch = json.dumps({"status": {"run": {"attempt": 1, "pendingApprovals": pending}}})
    installation.kubectl("patch", "prun", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    return name


def test_who_may_steer_may_not_therefore_approve_or_limit(
    installation: Installation, namespace: str, people: People
) -> None:
    run = awaiting(installation, namespace, "waits")
    everybody = ("vic", "ed", "ada", "ann", "lim", "nobody")

    may = {
        "steer": {p for p in everybody if people.may(p, run, control={"steer": {p: {"message": "hello"}}})},
        "pause": {p for p in everybody if people.may(p, run, control={"mode": "Pause", "reason": p})},
        "limit": {p for p in everybody if people.may(p, run, limits={"tokenBudget": 1000 + len(p)})},
        "decide": {p for p in everybody if people.may_decide(p, awaiting(installation, namespace, f"of-{p}"))},
    }

    assert may == {
        "steer": {"ed", "ada", "ann", "lim"},
        "pause": {"ed", "ada", "ann", "lim"},
        "limit": {"lim"},
        "decide": {"ann"},
    }


def test_a_decision_is_signed_with_ones_own_name_or_not_at_all(
    installation: Installation, namespace: str, people: People
) -> None:
    run = awaiting(installation, namespace, "signed")

    assert not people.may_decide("ann", run, by="ed")
    assert not people.may("ed", run, control={"mode": "Pause", "by": "ann"})
    assert people.may_decide("ann", run, by="ann")


def test_the_admin_of_a_namespace_says_who_approves_and_limits_there_and_an_editor_does_not(
    installation: Installation, namespace: str, people: People
) -> None:
    run = awaiting(installation, namespace, "bound")
    rolebinding = ("create", "rolebinding", "own", "--clusterrole=pilothouse-approver", "--user=ed", "-n", namespace)
    refused = installation.refused(*rolebinding, "--as=ed")

    people.bind("ed", "pilothouse-approver", "--as=ada")
    people.bind("ed", "pilothouse-limiter", "--as=ada")

    assert "forbidden" in refused
    assert people.may_decide("ed", run)
    assert people.may("ed", run, limits={"tokenBudget": 9})
