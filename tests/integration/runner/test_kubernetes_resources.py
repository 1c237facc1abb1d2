"""Resource steps on a real API server: a team's Role, Secrets, kinds of CRDs, crashes, a runner's process."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from pilothouse_api.names import ANNOTATION_IDEMPOTENCY_KEY
from pilothouse_api.structs import Plan
from pilothouse_cli.local.cluster import find_cluster
from pilothouse_engine.ports import Ports, ResourceFailure, ResourceReply, ResourceRequest, Resources
from pilothouse_engine.run import Attempt, Finished, Stop, run_attempt
from pilothouse_engine.scripted import ScriptedModel
from pilothouse_engine.testing.frames import ListFrameSink
from pilothouse_engine.testing.journal import MemoryJournal
from pilothouse_engine.testing.store import MemoryRunStore
from pilothouse_runner.adapters.api_server import ApiServer, Cluster
from pilothouse_runner.adapters.clock import SystemClock
from pilothouse_runner.adapters.kubernetes_resources import KubernetesResources
from support.agentruns import Administrator
from support.cluster import LocalCluster
from support.resource_contract import ResourceContract, an_object, ask, failure_of, value_of
from support.runner_process import RunnerPod, finish

pytestmark = pytest.mark.anyio

TEAM = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: prun-team, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: prun-team, namespace: default}
rules:
  - {apiGroups: [""], resources: [configmaps, secrets], verbs: [get, list, create, patch, delete]}
  - {apiGroups: [resources.test], resources: [widgets], verbs: [get, create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: prun-team, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: prun-team}
subjects: [{kind: ServiceAccount, name: prun-team, namespace: default}]
"""
WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.resources.test}
spec:
  group: resources.test
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {size: {type: integer, maximum: 9}}}
"""


@pytest.fixture(scope="session")
def team_token(control_plane: LocalCluster) -> str:
    control_plane.run_tool("kubectl", "apply", "-f", "-", stdin=TEAM)
    return control_plane.run_tool("kubectl", "create", "token", "prun-team", "--namespace", "default").strip()


@pytest.fixture
async def resources(control_plane: LocalCluster, team_token: str, tmp_path: Path) -> AsyncIterator[Resources]:
    token = tmp_path / "team-token"
    token.write_text(team_token)
    opened = KubernetesResources(ApiServer(control_plane.url, token, control_plane.ca_path), "default")
    yield opened
    await opened.aclose()


class TestKubernetesResources(ResourceContract):
    """The contract of the port, under the rights of a team's Role."""


async def test_what_no_role_allows_is_forbidden_and_says_which_one_would(resources: Resources) -> None:
    failure = await failure_of(resources, ask("List", kind="Pod"))
    assert (failure.kind, failure.sent) == ("Forbidden", False)
    assert "unless a Role allows list pods of apiGroup '' in namespace default" in failure.message
    assert "system:serviceaccount:default:prun-team" in failure.detail
    elsewhere = await failure_of(resources, ask("Get", "kube-root-ca.crt", namespace="kube-system"))
    assert elsewhere.kind == "Forbidden"
    deployment = await failure_of(resources, ask("Delete", "d", api_version="apps/v1", kind="Deployment"))
    assert "delete deployments of apiGroup 'apps'" in deployment.message


async def test_a_token_that_the_api_server_does_not_know_is_said(control_plane: LocalCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("nobody's")
    stranger = KubernetesResources(ApiServer(control_plane.url, token, control_plane.ca_path), "default")
    assert (await failure_of(stranger, ask("Get", "a"))).kind == "Unauthorized"
    await stranger.aclose()


async def test_a_secret_that_kubectl_applied_shows_nothing_of_its_data(
    resources: Resources, control_plane: LocalCluster
) -> None:
    manifest = an_object("Secret", "applied", stringData={"password": "hidden-value"})
    control_plane.run_tool("kubectl", "apply", "-f", "-", stdin=json.dumps(manifest))
    stored = control_plane.run_tool("kubectl", "get", "secret", "applied", "-o", "yaml")
    assert "hidden-value" in stored  # kubectl keeps the whole manifest in an annotation
    shown = await value_of(resources, ask("Get", "applied", kind="Secret"))
    assert "hidden-value" not in json.dumps(shown)
    assert "managedFields" not in shown["metadata"]
    refused = await failure_of(
        resources, ask("Patch", "applied", kind="Secret", body={"data": {"password": "hidden not base64"}})
    )
    assert (refused.kind, "hidden" in refused.message + refused.detail) == ("Invalid", False)


async def test_a_kind_of_a_crd_is_found_as_soon_as_it_is_served(
    resources: Resources, control_plane: LocalCluster
) -> None:
    def widget(operation: Any, name: str = "w1", **fields: Any) -> ResourceRequest:
        return ask(operation, name, api_version="resources.test/v1", kind="Widget", **fields)

    assert (await failure_of(resources, widget("Get"))).kind == "UnknownKind"
    control_plane.run_tool("kubectl", "apply", "-f", "-", stdin=WIDGETS)
    control_plane.wait_established("crd/widgets.resources.test")

    body = {"apiVersion": "resources.test/v1", "kind": "Widget", "metadata": {"name": "w1"}, "spec": {"size": 3}}
    created = await until_served(resources, widget("Create", body=body))
    assert created["spec"] == {"size": 3}
    assert (await value_of(resources, widget("Patch", body={"spec": {"size": 4}})))["spec"] == {"size": 4}
    too_big = await failure_of(resources, widget("Patch", body={"spec": {"size": 10}}))
    assert (too_big.kind, "should be less than or equal to 9" in too_big.detail) == ("Invalid", True)
    misspelt = await failure_of(resources, widget("Patch", body={"spec": {"sise": 1}}))
    assert (misspelt.kind, 'unknown field "spec.sise"' in misspelt.detail) == ("Invalid", True)
    not_listed = await failure_of(resources, ask("List", api_version="resources.test/v1", kind="Widget"))
    assert not_listed.kind == "Forbidden"


async def until_served(resources: Resources, request: ResourceRequest) -> Any:
    """Discovery and storage of a new kind lag behind its condition by moments."""
    ends = time.monotonic() + 60
    while True:
        got = await resources.call(request)
        if isinstance(got, ResourceReply):
            return got.value
        assert got.kind in ("UnknownKind", "NotFound") and time.monotonic() < ends, got
        await asyncio.sleep(0.1)


async def test_an_object_that_was_changed_meanwhile_is_a_conflict(resources: Resources) -> None:
    body = an_object("ConfigMap", "contended", data={"a": "1"})
    made = await value_of(resources, ask("Create", "contended", body=body))
    seen = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    await value_of(resources, ask("Patch", "contended", body={"data": {"a": "2"}}))
    failure = await failure_of(resources, ask("Patch", "contended", body={**seen, "data": {"a": "3"}}))
    assert (failure.kind, failure.sent) == ("Conflict", False)


async def test_a_list_of_many_pages_is_whole(resources: Resources, control_plane: LocalCluster) -> None:
    items = [an_object("ConfigMap", f"many-{n}", metadata={"labels": {"many": "yes"}}) for n in range(410)]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    control_plane.run_tool("kubectl", "create", "-f", "-", stdin=manifest)
    listed = await value_of(resources, ask("List", label_selector="many=yes", timeout=60))
    assert len({item["metadata"]["name"] for item in listed["items"]}) == 410
    too_large = await failure_of(resources, ask("List", label_selector="many=yes", max_bytes=100_000))
    assert too_large.kind == "TooLarge"


async def test_a_local_run_acts_on_the_cluster_that_kubeconfig_names(control_plane: LocalCluster) -> None:
    cluster = find_cluster({"KUBECONFIG": str(control_plane.kubeconfig)})
    assert isinstance(cluster, Cluster)
    local = KubernetesResources(cluster.server, cluster.namespace)
    assert (await value_of(local, ask("Get", "default", kind="Namespace")))["kind"] == "Namespace"
    await local.aclose()


# ---------------------------------------------------------------- crashes


class Killed(BaseException):
    """The process is gone."""


@dataclass
class DiesOnce:
    """Lets the first call be carried out, and dies before its answer is known."""

    resources: Resources
    is_spent: bool = False

    async def call(self, request: ResourceRequest) -> ResourceReply | ResourceFailure:
        got = await self.resources.call(request)
        if not self.is_spent:
            self.is_spent = True
            raise Killed
        return got


def creating_plan(effect: str) -> Plan:
    resource = {
        "operation": "Create",
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "body": {"metadata": {"generateName": "made-by-run-"}, "data": {"ticket": "{{ ticket }}"}},
    }
    step = {"id": "make", "kind": "Resource", "effect": effect, "resource": resource}
    uid = str(uuid.uuid4())
    return Plan.read(
        {
            "run": {"namespace": "default", "name": "r1", "uid": uid},
            "workflow": {"name": "w", "digest": "0"},
            "spec": {"steps": [step]},
            "input": {"ticket": uid},
        }
    )


async def run_with_a_crash(plan: Plan, resources: Resources) -> Finished:
    unused, clock = cast(Any, None), SystemClock()
    ports = Ports(
        model=ScriptedModel(clock),
        http=unused,
        functions=unused,
        mcp=unused,
        resources=DiesOnce(resources),
        secrets=unused,
        journal=MemoryJournal(durable=True),
        store=MemoryRunStore(clock, plan.run.uid),
        frames=ListFrameSink(),
        clock=clock,
    )
    with pytest.raises(Killed):
        await run_attempt(plan, ports, Attempt(1), Stop())
    end = await run_attempt(plan, ports, Attempt(2), Stop())
    assert isinstance(end, Finished), end
    return end


async def objects_of(resources: Resources, plan: Plan) -> list[dict[str, Any]]:
    listed = await value_of(resources, ask("List"))
    return [item for item in listed["items"] if (item.get("data") or {}).get("ticket") == plan.run.uid]


async def test_a_create_that_may_be_repeated_makes_one_object_in_spite_of_a_crash(resources: Resources) -> None:
    plan = creating_plan("Idempotent")
    end = await run_with_a_crash(plan, resources)
    assert (end.exit.signal, end.exit.reason) == ("default", "Complete")
    [made] = await objects_of(resources, plan)
    assert made["metadata"]["name"].startswith("made-by-run-")
    assert len(made["metadata"]["annotations"][ANNOTATION_IDEMPOTENCY_KEY]) == 64


async def test_a_create_that_may_happen_once_is_not_repeated_after_a_crash_and_listed(resources: Resources) -> None:
    plan = creating_plan("Once")
    end = await run_with_a_crash(plan, resources)
    assert (end.exit.signal, end.exit.reason) == ("error", "Error")
    assert end.exit.error is not None and end.exit.error.type == "EffectUnknown"
    [unknown] = end.snapshot.effects.unknown
    assert unknown.tool == "make"
    assert len(await objects_of(resources, plan)) == 1


# ---------------------------------------------------------------- a runner's process


def test_a_runner_takes_the_route_of_what_is_not_found_and_shows_nothing_of_a_secret(
    administrator: Administrator, pod_of: Callable[..., RunnerPod], control_plane: LocalCluster
) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    manifest = an_object("Secret", name, stringData={"password": "hidden-value"})
    control_plane.run_tool("kubectl", "apply", "-f", "-", stdin=json.dumps(manifest))

    def step(step_id: str, kind: str, name: str, **routes: str) -> dict[str, Any]:
        resource = {"operation": "Get", "apiVersion": "v1", "kind": kind, "name": name}
        return {"id": step_id, "kind": "Resource", "resource": resource, "routes": routes}

    pod = pod_of(
        {
            "spec": {
                "steps": [
                    step("absent", "ConfigMap", "nobody-made-it", not_found="secret"),
                    step("skipped", "ConfigMap", "never-asked"),
                    step("secret", "Secret", name),
                    {"id": "say", "kind": "Response", "response": {"mapping": {"got": "secret_result.data"}}},
                ]
            }
        }
    )
    code, lines = finish(pod.start())
    assert code == 0, lines
    snapshot = administrator.get(pod.run.name)["status"]["run"]
    assert [(step["id"], step["signal"]) for step in snapshot["steps"]] == [
        ("absent", "not_found"),
        ("secret", "default"),
        ("say", "default"),
    ], snapshot["exit"]
    assert snapshot["result"] == {"got": {"password": "[masked]"}}
    everything = json.dumps([snapshot, lines])
    assert "hidden-value" not in everything and "aGlkZGVuLXZhbHVl" not in everything
