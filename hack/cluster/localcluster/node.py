"""The one node of a cluster: scheduler, containerd, kubelet, kube-proxy and CoreDNS."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .cgroups import ensure_cgroup
from .control_plane import FAST_CLIENT, apply, kubectl
from .credentials import NODE_NAME, ca_certificate
from .image_archive import PAUSE_IMAGE, images_in, write_pause_image
from .kernel import remember_settings
from .needs import cni_folder
from .network import NODE_IP, NODE_POD_RANGE, POD_RANGE
from .processes import Component, ensure_running, succeeds, wait_until
from .state import HERE, Cluster, ClusterError

MAX_PODS = 500
VOLUMES = 4
"""Claims that a cluster can serve: each gets a folder of the cluster's own, which ends with it."""


def scheduler(cluster: Cluster) -> Component:
    kubeconfig = f"--kubeconfig={cluster.kubeconfig('scheduler')}"
    return Component(
        "scheduler", [f"{cluster.binaries}/kube-scheduler", kubeconfig, "--leader-elect=false", *FAST_CLIENT]
    )


def containerd(cluster: Cluster) -> Component:
    return Component("containerd", ["containerd", f"--config={cluster.state}/containerd.toml"])


def kubelet(cluster: Cluster) -> Component:
    return Component(
        "kubelet",
        [
            f"{cluster.binaries}/kubelet",
            f"--config={cluster.state}/kubelet.json",
            f"--kubeconfig={cluster.kubeconfig('node')}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
            f"--root-dir={cluster.state}/kubelet",
            f"--cert-dir={cluster.pki}/kubelet",
        ],
    )


def kube_proxy(cluster: Cluster) -> Component:
    return Component(
        "proxy",
        [
            f"{cluster.binaries}/kube-proxy",
            f"--kubeconfig={cluster.kubeconfig('proxy')}",
            f"--hostname-override={NODE_NAME}",
            f"--cluster-cidr={POD_RANGE}",
            "--proxy-mode=iptables",
            # With the default of a second, a pod that is Ready cannot be reached through its service yet.
            "--iptables-min-sync-period=50ms",
            # These are settings of the machine, which a namespace may not change.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ],
    )


def coredns(cluster: Cluster) -> Component:
    return Component("dns", [f"{cluster.binaries}/coredns", f"-conf={cluster.state}/Corefile"])


def start_node(cluster: Cluster) -> None:
    """Start what is not running yet, and return when the node is Ready and names resolve."""
    ensure_cgroup(cluster)
    remember_settings()
    _write_configuration(cluster)
    ensure_running(cluster, containerd(cluster))
    ensure_running(cluster, scheduler(cluster))
    apply(cluster, HERE / "coredns.yaml")
    apply(cluster, _write_volumes(cluster))
    ensure_running(cluster, coredns(cluster))
    answers = ctr(cluster, "version")
    wait_until(cluster, "containerd to answer", "containerd", lambda: succeeds(answers))
    _load_pause_image(cluster)
    ensure_running(cluster, kubelet(cluster))
    ensure_running(cluster, kube_proxy(cluster))
    is_ready = kubectl(cluster, "wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=1s")
    wait_until(cluster, "the node to be Ready", "kubelet", lambda: succeeds(is_ready))


def ctr(cluster: Cluster, *arguments: str) -> list[str]:
    return ["ctr", f"--address={cluster.containerd_socket}", "--namespace=k8s.io", *arguments]


def load_images(cluster: Cluster, archives: Sequence[Path]) -> None:
    """Import OCI or docker archives into the node. Pods then need `imagePullPolicy: IfNotPresent`."""
    present = _present_images(cluster)
    for archive in archives:
        images = images_in(archive)
        if images and images.items() <= present.items():
            continue  # an import would copy every layer again before it finds out
        done = subprocess.run(
            ctr(cluster, "images", "import", str(archive)), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"cannot load {archive}: {done.stderr.strip() or done.stdout.strip()}")


def _present_images(cluster: Cluster) -> dict[str, str]:
    """Tag → id of what the node holds."""
    tool = [str(cluster.tools / "crictl"), "images", "--output=json"]
    listed = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    return {tag: image["id"] for image in json.loads(listed)["images"] for tag in image["repoTags"]}


def _load_pause_image(cluster: Cluster) -> None:
    archive = cluster.run / "pause.tar"
    write_pause_image(cluster.binaries / "pause", archive)
    load_images(cluster, [archive])
    archive.unlink()


def _write_configuration(cluster: Cluster) -> None:
    network = cluster.state / "cni"
    network.mkdir(exist_ok=True)
    (network / "10-pods.conflist").write_text(json.dumps(_pod_network(cluster), indent=2) + "\n")
    (cluster.state / "kubelet.json").write_text(json.dumps(_kubelet_configuration(cluster), indent=2) + "\n")
    (cluster.state / "resolv.conf").write_text(f"nameserver {NODE_IP}\n")
    (cluster.state / "containerd.toml").write_text(_containerd_configuration(cluster))
    corefile = (
        f".:53 {{\n  bind {NODE_IP}\n  errors\n"
        f"  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {cluster.kubeconfig('dns')}\n  }}\n  cache 5\n}}\n"
    )
    (cluster.state / "Corefile").write_text(corefile)


def _write_volumes(cluster: Cluster) -> Path:
    """Write the default storage class and its volumes, which nobody needs to provision; return the manifests' file."""
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    path = cluster.state / "volumes.json"
    items = [storage_class, *(_volume(cluster, number) for number in range(VOLUMES))]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n")
    return path


def _volume(cluster: Cluster, number: int) -> dict[str, object]:
    folder = cluster.state / "volumes" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # a pod's group is not given to a folder of the host
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{number}"},
        "spec": {
            "capacity": {"storage": "8Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "hostPath": {"path": str(folder)},
        },
    }


def _pod_network(cluster: Cluster) -> dict[str, object]:
    """A route to each pod instead of a bridge, on which a service's replies would bypass kube-proxy's rules."""
    addresses = {
        "type": "host-local",
        "dataDir": f"{cluster.run}/pod-addresses",
        "ranges": [[{"subnet": NODE_POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}]}


def _kubelet_configuration(cluster: Cluster) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cluster.cgroup}",
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": f"unix://{cluster.containerd_socket}",
        "failSwapOn": False,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(ca_certificate(cluster))},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [NODE_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{cluster.state}/resolv.conf",
        "podLogsDir": f"{cluster.logs}/pods",
        "volumePluginDir": f"{cluster.state}/volume-plugins",
        "serializeImagePulls": False,
        "maxPods": MAX_PODS,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        # The images were loaded by hand and cannot be pulled again; a developer's disk may well be nearly full.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
    }


def _containerd_configuration(cluster: Cluster) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{cluster.state}/containerd"
state = "{cluster.run}/containerd"
# The first would make a folder in /opt, the others need what most machines lack.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "{cluster.containerd_socket}"

[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE, as in many sandboxes, nobody may lower an oom score, and runc dies trying.
  restrict_oom_score_adj = true
  # Where `down` finds them.
  netns_mounts_under_state_dir = true
  [{cri}.cni]
    bin_dir = "{cni_folder()}"
    conf_dir = "{cluster.state}/cni"
  [{cri}.containerd]
    snapshotter = "{_snapshotter(cluster)}"
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{cluster.run}/runc"
"""


def _snapshotter(cluster: Cluster) -> str:
    """Overlays are fast, but cannot be made on top of another overlay: within a container plain copies must do."""
    probe = cluster.run / "overlay"
    folders = {name: probe / name for name in ("lower", "upper", "work", "merged")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={folders['lower']},upperdir={folders['upper']},workdir={folders['work']}"
    if not succeeds(["mount", "-t", "overlay", "overlay", "-o", options, folders["merged"]]):
        return "native"
    subprocess.run(["umount", folders["merged"]], check=True)
    return "overlayfs"
