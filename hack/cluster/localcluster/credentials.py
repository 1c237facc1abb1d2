"""Certificates, service account keys, tokens and kubeconfigs of a cluster. All of it dies with the cluster."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .network import FIRST_SERVICE_IP, NODE_IP
from .state import Cluster, ClusterError

NODE_NAME = "node-1"
SERVER = f"https://{NODE_IP}:6443"
USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "node": (f"system:node:{NODE_NAME}", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("system:dns", ""),
}
"""Who talks to the API server: kubeconfig → user and group."""

SERVER_NAMES = (
    f"IP:{NODE_IP},IP:127.0.0.1,IP:{FIRST_SERVICE_IP},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,"
    "DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
)


def ca_certificate(cluster: Cluster) -> Path:
    return cluster.pki / "ca.crt"


def tokens_file(cluster: Cluster) -> Path:
    return cluster.pki / "tokens.csv"


def ensure_credentials(cluster: Cluster) -> None:
    if cluster.kubeconfig("dns").exists():  # written last
        return
    _make_certificate(cluster, "ca", "/CN=pilothouse-ca", ("basicConstraints=critical,CA:TRUE", "keyUsage=keyCertSign"))
    _make_certificate(cluster, "apiserver", "/CN=kube-apiserver", (f"subjectAltName={SERVER_NAMES}",), is_signed=True)
    # With this one the API server asks kubelets for logs, exec and port-forward.
    client = ("extendedKeyUsage=clientAuth",)
    _make_certificate(
        cluster, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", client, is_signed=True
    )
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", cluster.pki / "sa.key")
    _openssl("pkey", "-in", cluster.pki / "sa.key", "-pubout", "-out", cluster.pki / "sa.pub")
    tokens = {user: secrets.token_hex(16) for user in USERS}
    rows = [f'{tokens[key]},{user},{key},"{group}"\n' for key, (user, group) in USERS.items()]
    tokens_file(cluster).write_text("".join(rows))
    for user, token in tokens.items():
        cluster.kubeconfig(user).write_text(_kubeconfig(cluster, token))


def _make_certificate(
    cluster: Cluster, name: str, subject: str, extensions: tuple[str, ...], *, is_signed: bool = False
) -> None:
    signer = ("-CA", cluster.pki / "ca.crt", "-CAkey", cluster.pki / "ca.key") if is_signed else ()
    usage = ("basicConstraints=critical,CA:FALSE", "keyUsage=digitalSignature") if is_signed else ()
    added = [word for extension in (*usage, *extensions) for word in ("-addext", extension)]
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650"),
        *("-subj", subject, "-keyout", cluster.pki / f"{name}.key", "-out", cluster.pki / f"{name}.crt"),
        *(*signer, *added),
    )


def _kubeconfig(cluster: Cluster, token: str) -> str:
    authority = base64.b64encode(ca_certificate(cluster).read_bytes()).decode()
    name = cluster.namespace
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": SERVER, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(content, indent=2) + "\n"


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
