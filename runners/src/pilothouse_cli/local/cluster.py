"""The cluster that a local run's Resource steps act on: the one that KUBECONFIG names, and no other.

Without KUBECONFIG there is none, even where `~/.kube/config` stands: a workflow that is tried on a laptop must not
change whatever cluster its owner looked at last.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilothouse_engine.ports import ResourceFailure
from pilothouse_runner.adapters.api_server import ApiServer, Cluster

_OF_ODD_FILES = (ValueError, TypeError, AttributeError, KeyError)
"""What the client raises for YAML that is no kubeconfig; it does not look before it reads."""


def find_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | ResourceFailure:
    """Return the cluster of the kubeconfig's current context, or why there is none; may run the login that it names."""
    path = environment.get("KUBECONFIG")
    if not path:
        what = "a local run has no cluster: set KUBECONFIG to the kubeconfig of the one that Resource steps may act on"
        return ResourceFailure("NoCluster", what)
    import kubernetes.config
    import yaml

    config: Any = kubernetes.config
    try:
        _, current = config.list_kube_config_contexts(path)
        client = config.new_client_from_config(path).configuration
    except (kubernetes.config.ConfigException, yaml.YAMLError, OSError, *_OF_ODD_FILES) as error:
        return ResourceFailure("NoCluster", f"KUBECONFIG cannot be used: {error}"[:300])
    namespace = (current or {}).get("context", {}).get("namespace") or "default"
    return Cluster(_server_of(client), namespace)


def _server_of(configuration: Any) -> ApiServer:
    """Return the server of a client's configuration, with the login that it renews when it expires."""
    certificate = None
    if configuration.cert_file and configuration.key_file:
        certificate = (Path(configuration.cert_file), Path(configuration.key_file))
    return ApiServer(
        url=configuration.host.rstrip("/"),
        ca_path=Path(configuration.ssl_ca_cert) if configuration.ssl_ca_cert else None,
        authorization=lambda: configuration.auth_settings().get("BearerToken", {}).get("value"),
        client_certificate=certificate,
        verify=configuration.verify_ssl,
    )
