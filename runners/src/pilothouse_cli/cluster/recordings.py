"""What was observed of runs in a cluster: the operator API reads it from the store of journals.

It gives looks as the runner kept them; the plan, by which they are checked, is the namespace's own ConfigMap.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import kubernetes.client as k8s
import urllib3
from kubernetes.client.exceptions import ApiException

from pilothouse_api import names
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.cluster.runs import REQUEST_TIMEOUT_SECONDS, ClusterRuns
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, CliError
from pilothouse_cli.runs.recordings import Recording, record
from pilothouse_engine.looks import settle_looks

MAX_ANSWER_BYTES = 16 * 1024 * 1024


def record_in_cluster(runs: ClusterRuns, name: str, api: str | None) -> Recording:
    """Return what is kept of a run's looks, by the operator API at this address; raises CliError."""
    if api is None:
        raise CliError(
            f"what was observed of run {name} lies in the cluster's Redis, which the operator API reads",
            "say where that is: --api URL",
            EXIT_USAGE,
        )
    run = runs.get(name)
    plan = read_plan(runs.api_client, run)
    answer = ask_api(api, run, runs.api_client.configuration)
    try:
        recording = record(run, plan, settle_looks(answer["items"]))
        return replace(recording, run=f"{run.metadata.namespace}/{recording.run}")
    except (KeyError, TypeError):
        raise CliError(f"what {api} answers is no list of observations", "is it the operator API?") from None


def read_plan(client: Any, run: AgentRun) -> Plan:
    """Return the plan of a run, which must have the digest that its status says; raises CliError."""
    name, namespace = run.metadata.name, run.metadata.namespace or ""
    report = run.status.plan
    if report is None:
        raise CliError(f"run {name} has no plan yet, so nothing was observed of it", "", EXIT_FAILED)
    try:
        found: Any = k8s.CoreV1Api(client).read_namespaced_config_map(
            report.name, namespace, _request_timeout=REQUEST_TIMEOUT_SECONDS
        )
        return Plan.decode((found.data or {})[names.PLAN_KEY], report.digest)
    except ApiException as error:
        why = "is gone" if error.status == 404 else f"cannot be read ({error.status} {error.reason})"
        next_step = f"kubectl auth can-i get configmaps -n {namespace}"
        raise CliError(f"the plan of run {name} {why}", next_step, EXIT_NOT_FOUND) from None
    except (KeyError, ValueError, urllib3.exceptions.HTTPError) as error:
        raise CliError(f"the plan of run {name} cannot be used: {str(error)[:300]}", "", EXIT_FAILED) from None


def ask_api(api: str, run: AgentRun, configuration: Any) -> Mapping[str, Any]:
    """Return what the operator API answers about the looks of a run; raises CliError.

    It is asked with the token of the kubeconfig, which is never sent over a plain connection to another machine.
    """
    url = f"{api.rstrip('/')}/api/agents/runs/{run.metadata.namespace}/{run.metadata.name}/observations"
    try:
        parts = urlsplit(api)
        is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        raise CliError(f"{api[:80]!r} is no address", "--api https://HOST:PORT", EXIT_USAGE) from None
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here):
        raise CliError(f"{api[:80]!r} would be sent your token in the open", "--api https://HOST:PORT", EXIT_USAGE)
    token = configuration.get_api_key_with_prefix("authorization")
    if not token:
        raise CliError(
            "the kubeconfig has no token, and the operator API knows people by theirs",
            "use a context whose user has one: kubectl create token",
            EXIT_USAGE,
        )
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(REQUEST_TIMEOUT_SECONDS))
    try:
        answer = pool.request(
            "GET", url, headers={"Authorization": token, "Accept": "application/json"}, preload_content=False,
            redirect=False,
        )  # fmt: skip
        body = answer.read(MAX_ANSWER_BYTES)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise CliError(f"the operator API at {api} does not answer: {error}"[:300], "", EXIT_FAILED) from None
    return _answer(api, answer.status, body)


def _answer(api: str, status: int, body: bytes) -> Mapping[str, Any]:
    try:
        raw = json.loads(body)
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        what = f"{api} answered {status} with something that is no JSON object"
        raise CliError(what, "is it the operator API?", EXIT_FAILED)
    if status != 200:
        said = str(raw.get("detail") or raw.get("title") or f"status {status}")[:300]
        raise CliError(f"the operator API: {said}", "", EXIT_NOT_FOUND if status in (401, 403, 404) else EXIT_FAILED)
    return raw
