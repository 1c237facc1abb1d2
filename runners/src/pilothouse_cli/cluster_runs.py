"""Runs of a namespace of a cluster, through the official client."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes.client as k8s
import kubernetes.config
import kubernetes.watch
import urllib3
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, CliError, Forbidden, first_problem
from pilothouse_cli.local_state import not_found
from pilothouse_cli.runs import snapshot_of
from pilothouse_cli.turns import TurnRow, turns_of_trace
from pilothouse_engine.ports import RawEntry

PLURAL = "agentruns"
REQUEST_TIMEOUT_SECONDS = 15
PAGE = 500
"""Runs that one LIST returns."""
_OBJECT = (names.GROUP, names.VERSION)


class ClusterRuns:
    """The runs of one namespace; `Runs`."""

    def __init__(self, namespace: str, api: Any) -> None:
        self._namespace = namespace
        self._api = api
        self.where = f"namespace {namespace}"

    @staticmethod
    def connect(
        namespace: str | None = None, context: str | None = None, kubeconfig: Path | None = None
    ) -> "ClusterRuns":
        """Return the runs of a namespace, by default that of the kubeconfig's context; raises CliError."""
        # Read now: the client reads KUBECONFIG only once, when it is imported.
        path = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG")
        config: Any = kubernetes.config
        try:
            every, current = config.list_kube_config_contexts(path)
            if context is not None:
                current = next((item for item in every if item["name"] == context), current)
            api_client = config.new_client_from_config(path, context)
        except (kubernetes.config.ConfigException, OSError, ValueError) as error:
            raise CliError(
                f"no cluster can be reached: {error}", "set KUBECONFIG or --kubeconfig", EXIT_FAILED
            ) from None
        # Retries of urllib3 would make a person wait a minute for a cluster that is down.
        api_client.rest_client.pool_manager.connection_pool_kw["retries"] = urllib3.Retry(total=1, connect=0)
        default = (current or {}).get("context", {}).get("namespace") or "default"
        return ClusterRuns(namespace or default, k8s.CustomObjectsApi(api_client))

    def all(self) -> Sequence[AgentRun]:
        """Return all runs, oldest first."""
        with self._errors(""):
            listed = self._api.list_namespaced_custom_object(*_OBJECT, self._namespace, PLURAL, **_timeout())
        runs = [_parse(item) for item in listed["items"]]
        return sorted(runs, key=lambda run: (run.metadata.creation_timestamp or "", run.metadata.name))

    def unreadable(self) -> Mapping[str, str]:
        """Return nothing: an API server hands out no damaged objects."""
        return {}

    def select(self, selector: str | None = None) -> Sequence[AgentRun]:
        """Return the runs that have not ended and fit a label selector, read page by page."""
        labels = ",".join(filter(None, (f"!{names.LABEL_FINISHED}", selector)))
        runs: list[AgentRun] = []
        token: str | None = None
        while token != "":
            more = {"_continue": token} if token else {}
            with self._errors(""):
                page = self._api.list_namespaced_custom_object(
                    *_OBJECT, self._namespace, PLURAL, label_selector=labels, limit=PAGE, **more, **_timeout()
                )
            runs += [_parse(item) for item in page["items"]]
            token = page["metadata"].get("continue", "")
        return runs

    def get(self, name: str) -> AgentRun:
        """Return a run."""
        with self._errors(name):
            raw = self._api.get_namespaced_custom_object(*_OBJECT, self._namespace, PLURAL, name, **_timeout())
        return _parse(raw)

    def patch(self, name: str, spec: Mapping[str, Any]) -> AgentRun:
        """Apply a merge-patch to the spec; a field that the cluster does not know is refused, not dropped."""
        with self._errors(name):
            raw = self._api.patch_namespaced_custom_object(
                *_OBJECT,
                self._namespace,
                PLURAL,
                name,
                {"spec": dict(spec)},
                field_manager=names.FIELD_MANAGER_CLI,
                field_validation="Strict",
                **_timeout(),
                _content_type="application/merge-patch+json",
            )
        return _parse(raw)

    def submit(self, run: AgentRun) -> AgentRun:
        """Create a run."""
        body = {"apiVersion": names.API_VERSION, "kind": "AgentRun", **run.to_raw()}
        with self._errors(run.metadata.name):
            raw = self._api.create_namespaced_custom_object(
                *_OBJECT,
                self._namespace,
                PLURAL,
                body,
                field_manager=names.FIELD_MANAGER_CLI,
                field_validation="Strict",
                **_timeout(),
            )
        return _parse(raw)

    def turns(self, run: AgentRun) -> Sequence[TurnRow]:
        """Return the newest turns, out of the trace in status: the journal is the runner's."""
        return turns_of_trace(snapshot_of(run).trace)

    def entries(self, run: AgentRun) -> Sequence[RawEntry]:
        """Say where the journal is: a person's rights on runs are none on the store of journals."""
        key = f"{names.redis_run_prefix(self._namespace, run.metadata.uid or '')}journal"
        raise CliError(
            f"the journal of {run.metadata.name} is out of reach from here: in Redis it is the stream {key}",
            "who may read the Secret of Redis reads it there: XRANGE on that key; its last batch holds the result",
            EXIT_FAILED,
        )

    def wait_for_change(self, run: AgentRun, timeout: float) -> AgentRun:
        """Watch the object."""
        seconds = max(1, min(30, int(timeout)))
        watch: Any = kubernetes.watch.Watch
        stream = watch().stream(
            self._api.list_namespaced_custom_object,
            *_OBJECT,
            self._namespace,
            PLURAL,
            field_selector=f"metadata.name={run.metadata.name}",
            resource_version=run.metadata.resource_version,
            timeout_seconds=seconds,
            _request_timeout=(REQUEST_TIMEOUT_SECONDS, seconds + REQUEST_TIMEOUT_SECONDS),
        )
        try:
            with self._errors(run.metadata.name):
                for event in stream:
                    if event["type"] in ("ADDED", "MODIFIED"):
                        return _parse(event["object"])
                    break
        except ApiException as error:
            if error.status != 410:
                raise
        return self.get(run.metadata.name)

    def is_advancing(self, run: AgentRun) -> bool:
        """Return True: the operator starts an attempt for whatever needs one."""
        return True

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except ApiException as error:
            if error.status == 410:
                raise
            raise self._error(name, error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CliError(
                f"the cluster does not answer: {_reason(error)}", "kubectl cluster-info", EXIT_FAILED
            ) from None

    def _error(self, name: str, error: ApiException) -> CliError:
        message = _message(error)
        if error.status == 404 and name and "could not find the requested resource" not in message:
            return not_found(name, self.where)
        if error.status == 404:
            return CliError("this cluster does not know AgentRuns", "helm install pilothouse …", EXIT_NOT_FOUND)
        if error.status in (401, 403):
            return Forbidden(message, "ask whoever runs the cluster for the right", EXIT_NOT_FOUND)
        return CliError(message, "", 2 if error.status in (400, 409, 422) else EXIT_FAILED)


def _timeout() -> dict[str, Any]:
    return {"_request_timeout": REQUEST_TIMEOUT_SECONDS}


def _message(error: Any) -> str:
    try:
        body = json.loads(error.body)
        causes = [cause.get("message", "") for cause in (body.get("details") or {}).get("causes") or []]
        return "; ".join(causes) or str(body["message"])
    except (ValueError, TypeError, KeyError):
        return f"the cluster answered {error.status} {error.reason}"


def _reason(error: Exception) -> str:
    text = str(getattr(error, "reason", None) or error)
    return text.rsplit(": ", 1)[-1][:200]


def _parse(raw: Mapping[str, Any]) -> AgentRun:
    try:
        return AgentRun.model_validate(raw)
    except ValidationError as error:
        name = (raw.get("metadata") or {}).get("name")
        what = f"run {name} has what this version does not know: {first_problem(error)}"
        raise CliError(what, "upgrade the command line", EXIT_FAILED) from None
