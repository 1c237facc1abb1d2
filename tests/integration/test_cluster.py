"""The test cluster itself: what every other integration test stands on."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config

from support.cluster import HACK, LocalCluster, local_cluster, start_cluster, stop_cluster


@pytest.fixture
def api(control_plane: LocalCluster) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(config_file=str(control_plane.kubeconfig)) as made:
        yield made


def test_an_object_is_still_there_after_the_api_server_restarted(
    control_plane: LocalCluster, api: client.ApiClient
) -> None:
    core = client.CoreV1Api(api)
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="kept"), data={"key": "value"})
    core.create_namespaced_config_map("default", body)

    control_plane.restart_apiserver()

    assert core.read_namespaced_config_map("kept", "default").data == {"key": "value"}


def test_every_request_is_in_the_audit_log(control_plane: LocalCluster, api: client.ApiClient) -> None:
    name = f"audited-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespaced_config_map(
        "default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name))
    )

    events = control_plane.audit_events(name)

    assert [(event["verb"], event["stage"], event["level"]) for event in events] == [
        ("create", "ResponseComplete", "Metadata")
    ]


def test_a_service_account_gets_a_token_bound_to_a_pod(control_plane: LocalCluster, api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    container = client.V1Container(name="main", image="none")
    pod = core.create_namespaced_pod(
        "default",
        client.V1Pod(metadata=client.V1ObjectMeta(name="bound"), spec=client.V1PodSpec(containers=[container])),
    )
    bound_to = client.V1BoundObjectReference(api_version="v1", kind="Pod", name="bound", uid=pod.metadata.uid)
    request = client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=[], bound_object_ref=bound_to, expiration_seconds=600)
    )
    token = core.create_namespaced_service_account_token("default", "default", request).status.token

    review = client.AuthenticationV1Api(api).create_token_review(
        client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))
    )

    assert review.status.user.username == "system:serviceaccount:default:default"
    assert review.status.user.extra["authentication.kubernetes.io/pod-name"] == ["bound"]


def test_an_owned_object_goes_when_its_owner_goes(control_plane: LocalCluster, api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    owner = core.create_namespaced_config_map("default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="owner")))
    reference = client.V1OwnerReference(api_version="v1", kind="ConfigMap", name="owner", uid=owner.metadata.uid)
    owned = client.V1ObjectMeta(name="owned", owner_references=[reference])
    core.create_namespaced_config_map("default", client.V1ConfigMap(metadata=owned))

    core.delete_namespaced_config_map("owner", "default")

    deadline = time.monotonic() + 180  # its first look at new kinds may take two of its resyncs
    while any(item.metadata.name == "owned" for item in core.list_namespaced_config_map("default").items):
        assert time.monotonic() < deadline, "the garbage collector did not delete the owned ConfigMap within 180 s"
        time.sleep(0.1)


def test_down_leaves_no_process_no_mount_no_namespace_and_no_file() -> None:
    name = f"gone-{uuid.uuid4().hex[:8]}"
    try:
        start_cluster("node", name)
        start_cluster("node", name)  # a second time is fine
        kubectl(name, "run", "sleeper", "--image=localhost/pilothouse-pause:dev")
        kubectl(name, "wait", "--for=condition=Ready", "pod/sleeper", "--timeout=180s")
        assert traces_of(name)
    finally:
        stop_cluster(name)

    assert traces_of(name) == []
    stop_cluster(name)  # so is a second time of this


def kubectl(name: str, *arguments: str) -> None:
    subprocess.run([HACK / "cluster", "exec", "--name", name, "--", "kubectl", *arguments], check=True)


def traces_of(name: str) -> list[str]:
    """What on this machine bears the cluster's name: files, mounts, control groups and processes."""
    cluster = local_cluster(name)
    traces = [str(path) for path in (cluster.state, cluster.namespace_path) if path.exists()]
    traces += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    traces += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/*{name}*")]
    traces += [str(path) for path in Path("/var/log/containers").glob("*") if name in str(path.readlink())]
    traces += [str(path) for path in Path("/var/lib/cni/results").glob("*") if name in path.read_text()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it ended meanwhile
                continue
            if str(cluster.state) in words:
                traces.append(f"pid {entry.name}: {words}")
    return traces


def test_the_command_line_says_what_to_do_about_a_cluster_that_is_not_up() -> None:
    done = subprocess.run([HACK / "cluster", "env", "--name", "nobody"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "cluster nobody is not up: run" in done.stderr
