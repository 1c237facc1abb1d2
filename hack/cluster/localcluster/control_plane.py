"""etcd, API server and controller manager."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .credentials import ca_certificate, ensure_credentials, tokens_file
from .network import NODE_IP, POD_RANGE, SERVICE_RANGE, ensure_namespace, inside
from .processes import Component, ensure_running, succeeds, wait_until
from .state import Cluster, Level

ETCD_URL = "http://127.0.0.1:2379"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
AUDIT_LOG_MEGABYTES = 2000
"""Far beyond what a test run writes: a log that rotates would make tests miscount."""

FAST_CLIENT = ("--kube-api-qps=300", "--kube-api-burst=600")
"""With its default of 20 requests a second the controller manager alone takes four seconds to start."""


def kubectl(cluster: Cluster, *arguments: str) -> list[str]:
    program = str(cluster.binaries / "kubectl")
    options = [f"--kubeconfig={cluster.kubeconfig()}", f"--cache-dir={cluster.kubectl_cache}"]
    return inside(cluster, [program, *options, *arguments])


def etcd(cluster: Cluster) -> Component:
    return Component(
        "etcd",
        [
            f"{cluster.binaries}/etcd",
            f"--data-dir={cluster.state}/etcd",
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            # A cluster that is thrown away need not survive a power cut, and disks differ more than anything else.
            "--unsafe-no-fsync",
        ],
    )


def apiserver(cluster: Cluster) -> Component:
    pki = cluster.pki
    return Component(
        "apiserver",
        [
            f"{cluster.binaries}/kube-apiserver",
            f"--etcd-servers={ETCD_URL}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--advertise-address={NODE_IP}",
            "--secure-port=6443",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--token-auth-file={tokens_file(cluster)}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            f"--audit-policy-file={cluster.state}/audit-policy.json",
            f"--audit-log-path={cluster.audit_log}",
            f"--audit-log-maxsize={AUDIT_LOG_MEGABYTES}",
        ],
    )


def controller_manager(cluster: Cluster, level: Level) -> Component:
    command = [
        f"{cluster.binaries}/kube-controller-manager",
        f"--kubeconfig={cluster.kubeconfig('controller-manager')}",
        f"--service-account-private-key-file={cluster.pki}/sa.key",
        f"--root-ca-file={ca_certificate(cluster)}",
        f"--cluster-cidr={POD_RANGE}",
        # It makes this folder, by default in /usr.
        f"--flex-volume-plugin-dir={cluster.state}/volume-plugins",
        "--use-service-account-credentials",
        *FAST_CLIENT,
        "--leader-elect=false",
    ]
    if level is Level.CONTROL_PLANE:
        # Tests play the nodes: nobody may evict or collect pods because a node has no kubelet.
        absent = ("node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller")
        command.append("--controllers=*," + ",".join(f"-{name}" for name in absent))
    return Component("controller-manager", command)


def wait_for_apiserver(cluster: Cluster) -> None:
    is_ready = kubectl(cluster, "get", "--raw", "/readyz")
    wait_until(cluster, "the API server to be ready", "apiserver", lambda: succeeds(is_ready))


def start_control_plane(cluster: Cluster, level: Level) -> None:
    """Start what is not running yet, and return when pods and tokens can be made."""
    ensure_namespace(cluster)
    ensure_credentials(cluster)
    _write_tools(cluster)
    (cluster.state / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY, indent=2) + "\n")
    ensure_running(cluster, etcd(cluster))
    ensure_running(cluster, apiserver(cluster))
    wait_for_apiserver(cluster)
    ensure_running(cluster, controller_manager(cluster, level))
    has_account = kubectl(cluster, "get", "serviceaccount", "default")
    wait_until(cluster, "the default service account", "controller-manager", lambda: succeeds(has_account))


def apply(cluster: Cluster, manifest: Path) -> None:
    subprocess.run(kubectl(cluster, "apply", "-f", str(manifest)), check=True, stdout=subprocess.DEVNULL)


def _write_tools(cluster: Cluster) -> None:
    """Write the wrappers through which a person's shell reaches the cluster's network."""
    options = {"kubectl": "", "helm": "", "crictl": f" --runtime-endpoint unix://{cluster.containerd_socket}"}
    for name, option in options.items():
        tool = cluster.tools / name
        tool.write_text(
            f'#!/bin/sh\nexport KUBECACHEDIR="{cluster.kubectl_cache}"\n'
            f'exec nsenter --net="{cluster.namespace_path}" -- "{cluster.binaries}/{name}"{option} "$@"\n'
        )
        tool.chmod(0o755)
