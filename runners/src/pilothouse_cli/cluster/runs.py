"""Runs of a namespace of a cluster, or of all of them, through the official client."""

import json
import os
import sys
import time
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
from pilothouse_cli.runs.fleets import RunKey, key_of
from pilothouse_cli.runs.port import not_found, snapshot_of
from pilothouse_cli.runs.turns import TurnRow, turns_of_trace
from pilothouse_control.directives import Directive
from pilothouse_engine.ports import RawEntry

READABLE_FRAMES = 12_000
"""Recursion of Python that reads what the API server takes: JSON nested 10,000 deep; Python's own limit is 1,000."""
PLURAL = "agentruns"
REQUEST_TIMEOUT_SECONDS = 15
PAGE = 500
"""Runs that one LIST returns."""
LOOK_SECONDS = 5
"""How long one watch of many runs stays open: whoever follows them looks at the clock as often."""
TRIES = 4
"""Of a patch that the API server is too busy for."""
LONGEST_PAUSE_SECONDS = 10.0
_OBJECT = (names.GROUP, names.VERSION)


class ClusterRuns:
    """The runs of one namespace, or of all (`is_wide`): `Runs` by the names in `namespace`, and `Fleet`."""

    def __init__(self, namespace: str, api: Any, *, is_wide: bool = False) -> None:
        self._namespace = namespace
        self._api = api
        self._is_wide = is_wide
        self._version = ""
        """Of the newest listing of `select`: what `looks` begins at."""
        self.where = "all namespaces" if is_wide else f"namespace {namespace}"

    @staticmethod
    def connect(
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: Path | None = None,
        *,
        is_wide: bool = False,
    ) -> "ClusterRuns":
        """Return the runs of a namespace, by default that of the kubeconfig's context; raises CliError."""
        # A run may be nested as deep as the API server takes it; it must not keep a person from steering all others.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), READABLE_FRAMES))
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
        return ClusterRuns(namespace or default, k8s.CustomObjectsApi(api_client), is_wide=is_wide)

    @property
    def api_client(self) -> Any:
        """The official client that asks this cluster."""
        return self._api.api_client

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
        return self._list_labelled(",".join(filter(None, (f"!{names.LABEL_FINISHED}", selector))))

    def _list_labelled(self, labels: str) -> list[AgentRun]:
        runs: list[AgentRun] = []
        token: str | None = None
        listing, place = self._listing()
        while token != "":
            more = {"_continue": token} if token else {}
            with self._errors(""):
                page = listing(*place, label_selector=labels, limit=PAGE, **more, **_timeout())
            runs += [_parse(item) for item in page["items"]]
            token = page["metadata"].get("continue", "")
        self._version = page["metadata"]["resourceVersion"]
        return runs

    def _listing(self) -> tuple[Any, tuple[str, ...]]:
        if self._is_wide:
            return self._api.list_cluster_custom_object, (*_OBJECT, PLURAL)
        return self._api.list_namespaced_custom_object, (*_OBJECT, self._namespace, PLURAL)

    def get(self, name: str) -> AgentRun:
        """Return a run."""
        with self._errors(name):
            raw = self._api.get_namespaced_custom_object(*_OBJECT, self._namespace, PLURAL, name, **_timeout())
        return _parse(raw)

    def patch(self, name: str, spec: Mapping[str, Any]) -> AgentRun:
        """Apply a merge-patch to the spec; a field that the cluster does not know is refused, not dropped."""
        with self._errors(name):
            return self._patch(self._namespace, name, {"spec": dict(spec)})

    def _patch(self, namespace: str, name: str, body: Mapping[str, Any]) -> AgentRun:
        raw = self._api.patch_namespaced_custom_object(
            *_OBJECT,
            namespace,
            PLURAL,
            name,
            dict(body),
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

    # ------------------------------------------------------------ many at once

    def called(self, run: AgentRun) -> str:
        """Return the name, with its namespace where there are several."""
        return f"{run.metadata.namespace}/{run.metadata.name}" if self._is_wide else run.metadata.name

    def addressed(self, run: AgentRun) -> str:
        """Return name and namespace."""
        return f"{run.metadata.name} -n {run.metadata.namespace}"

    def direct(self, run: AgentRun, directive: Directive) -> AgentRun:
        """Patch this very run: its uid goes along, and the API server refuses it for another object of the name."""
        namespace, name = key_of(run)
        body = {"metadata": {"uid": run.metadata.uid}, "spec": dict(directive.patch)}
        with self._errors(name):
            for left in range(TRIES - 1, -1, -1):
                try:
                    return self._patch(namespace, name, body)
                except ApiException as error:
                    if not left or not _is_passing(error):
                        raise
                    time.sleep(_pause_of(error))
        raise AssertionError("the last try returns or raises")

    def reread(self, run: AgentRun) -> AgentRun:
        """Return this very run as it is now."""
        namespace, name = key_of(run)
        with self._errors(name):
            raw = self._api.get_namespaced_custom_object(*_OBJECT, namespace, PLURAL, name, **_timeout())
        if raw["metadata"]["uid"] != run.metadata.uid:
            raise not_found(name, self.where)
        return _parse(raw)

    def looks(self, open_runs: Mapping[RunKey, AgentRun], selector: str | None) -> Iterator[AgentRun | RunKey | None]:
        """Watch all of them at once, from the listing of `select` on; list again where that is too long ago."""
        while True:
            try:
                with self._errors(""):
                    yield from self._watch(open_runs, selector)
            except ApiException as error:
                if error.status != 410:
                    raise
                yield from self._relist(open_runs, selector)
            yield None

    def _watch(self, open_runs: Mapping[RunKey, AgentRun], selector: str | None) -> Iterator[AgentRun | RunKey]:
        listing, place = self._listing()
        labels = {"label_selector": selector} if selector else {}
        stream = kubernetes.watch.Watch().stream(  # type: ignore[no-untyped-call]
            listing,
            *place,
            **labels,
            resource_version=self._version,
            timeout_seconds=LOOK_SECONDS,
            _request_timeout=(REQUEST_TIMEOUT_SECONDS, LOOK_SECONDS + REQUEST_TIMEOUT_SECONDS),
        )
        for event in stream:
            raw = event["object"]
            metadata = raw["metadata"]
            self._version = metadata["resourceVersion"]
            key = (metadata.get("namespace", ""), metadata["name"])
            known = open_runs.get(key)
            if known is None or known.metadata.uid != metadata["uid"]:
                continue
            # What a label takes out of sight counts as deleted here, and may be there.
            yield self._look_again(known) if event["type"] == "DELETED" else _parse(raw)

    def _look_again(self, run: AgentRun) -> AgentRun | RunKey:
        try:
            return self.reread(run)
        except Forbidden:
            raise
        except CliError as error:
            if error.code != EXIT_NOT_FOUND:
                raise
            return key_of(run)

    def _relist(self, open_runs: Mapping[RunKey, AgentRun], selector: str | None) -> Iterator[AgentRun | RunKey]:
        listed = {key_of(run): run for run in self._list_labelled(selector or "")}
        for key, run in list(open_runs.items()):
            found = listed.get(key)
            is_it = found is not None and found.metadata.uid == run.metadata.uid
            yield found if found is not None and is_it else self._look_again(run)

    def land(self, run: AgentRun) -> AgentRun:
        """Return the run: attempts are the operator's."""
        return run

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


def _is_passing(error: Any) -> bool:
    """Tell whether the API server was too busy: with requests, or with writes of the run by others."""
    return error.status == 429 or (error.status == 409 and "the object has been modified" in str(error.body))


def _pause_of(error: Any) -> float:
    said = str((error.headers or {}).get("Retry-After", ""))
    return min(float(said) if said.isascii() and said.isdigit() else 0.2, LONGEST_PAUSE_SECONDS)


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
