"""Every string that crosses a process boundary: group, labels, annotations, environment, paths, object names.

Each name is built by exactly one function, so that operator, runner, CLI and chart cannot disagree.
"""

import hashlib
import re

GROUP = "pilothouse.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "pilothouse"
LABEL_RUN = f"{GROUP}/run"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_WORKFLOW = f"{GROUP}/workflow"
LABEL_FINISHED = f"{GROUP}/finished"
LABEL_TRIGGER = f"{GROUP}/trigger"
LABEL_ARTIFACT = f"{GROUP}/artifact"
LABEL_PLAN_OF = f"{GROUP}/plan-of"
LABEL_PARENT = f"{GROUP}/parent"
LABEL_PARENT_CALL = f"{GROUP}/parent-call"
LABEL_COPIED_MODE = f"{GROUP}/copied-mode"
ANNOTATION_IDEMPOTENCY_KEY = f"{GROUP}/idempotency-key"
ANNOTATION_SUSPEND = f"{GROUP}/suspend"
"""On a Namespace, with the value "true": no run begins in it; what has begun goes on."""

RUNNER_CONTAINER = "runner"
"""Name of the container of a run's pod that is the runner; webhooks may put others beside it."""

ENV_RUN_NAMESPACE = "PILOTHOUSE_RUN_NAMESPACE"
ENV_RUN_NAME = "PILOTHOUSE_RUN_NAME"
ENV_RUN_UID = "PILOTHOUSE_RUN_UID"
ENV_ATTEMPT = "PILOTHOUSE_ATTEMPT"
ENV_PLAN_PATH = "PILOTHOUSE_PLAN_PATH"
ENV_PLAN_DIGEST = "PILOTHOUSE_PLAN_DIGEST"
ENV_JOURNAL = "PILOTHOUSE_JOURNAL"
ENV_REDIS_URL = "PILOTHOUSE_REDIS_URL"
ENV_REDIS_KEEP = "PILOTHOUSE_REDIS_KEEP_SECONDS"
ENV_REDIS_KEEP_FINISHED = "PILOTHOUSE_REDIS_KEEP_FINISHED_SECONDS"
ENV_SECRETS_PATH = "PILOTHOUSE_SECRETS_PATH"
ENV_SETTLE = "PILOTHOUSE_SETTLE"
ENV_ABORT_GRACE = "PILOTHOUSE_ABORT_GRACE_SECONDS"

ENV_JUDGE_MODELS_PATH = "PILOTHOUSE_JUDGE_MODELS_PATH"
ENV_JUDGE_TOKEN_PATH = "PILOTHOUSE_JUDGE_TOKEN_PATH"
ENV_JUDGE_PORT = "PILOTHOUSE_JUDGE_PORT"

ENV_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENV_OTLP_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENV_OTLP_METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
OTEL_PREFIX = "OTEL_"

PLAN_KEY = "plan.json"
PLAN_PATH = "/etc/pilothouse/plan/plan.json"
SECRETS_PATH = "/var/run/pilothouse/secrets"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
AUDIENCE_TOKENS_PATH = "/var/run/pilothouse/tokens"
JOURNAL_PATH = "/var/lib/pilothouse/journal"
REDIS_LOGIN_PATH = "/var/run/pilothouse/redis"
JUDGE_MODELS_PATH = "/etc/pilothouse/judge/models.yaml"
JUDGE_TOKEN_PATH = "/var/run/pilothouse/judge/token"

DEFAULT_RUNNER_SERVICE_ACCOUNT = "prun"
FIELD_MANAGER_OPERATOR = "pilothouse-operator"
FIELD_MANAGER_SUPERVISION = "pilothouse-supervision"
FIELD_MANAGER_RUNNER = "pilothouse-runner"
FIELD_MANAGER_CLI = "pilothouse-cli"
FIELD_MANAGER_API = "pilothouse-api"
LEASE_NAME = "pilothouse-operator"

MAX_WORKFLOW_NAME = 52
MAX_RUN_NAME = 58
MAX_LABEL_VALUE = 63

_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


def is_dns_label(name: str) -> bool:
    """Tell whether `name` is an RFC 1123 label of at most 63 characters."""
    return len(name) <= 63 and _DNS_LABEL.fullmatch(name) is not None


def short_hash(text: str, length: int = 8) -> str:
    """Return the first `length` hex digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def fit(name: str, limit: int) -> str:
    """Return `name`, or where it is longer than `limit` its head and 8 hex digits of its hash."""
    return name if len(name) <= limit else f"{name[: limit - 9].rstrip('-')}-{short_hash(name)}"


def plan_name(run: str) -> str:
    """Return the name of the ConfigMap that holds the plan of `run`."""
    return f"{run}-plan"


def pod_name(run: str, attempt: int) -> str:
    """Return the name of the pod of an attempt (attempts count from 1)."""
    return f"{run}-{attempt}"


def generation_run_name(workflow: str, generation: int, workflow_uid: str) -> str:
    """Return the name of the run that an OnChange trigger makes for one generation of a workflow."""
    return fit(f"{workflow}-g{generation}-{short_hash(workflow_uid, 4)}", MAX_RUN_NAME)


def slot_run_name(workflow: str, unix_minute: int, workflow_uid: str) -> str:
    """Return the name of the run that a Schedule trigger makes for one slot (minutes since the epoch)."""
    return fit(f"{workflow}-{unix_minute}-{short_hash(workflow_uid, 4)}", MAX_RUN_NAME)


def child_run_name(parent: str, call_id: str) -> str:
    """Return the name of the run that does a call of another run."""
    return fit(f"{parent}-{call_id}", MAX_RUN_NAME)


def secret_file(name: str, key: str) -> str:
    """Return the path, below the secrets folder of a runner, of one key of a Secret."""
    return f"{name}/{key}"


def redis_run_prefix(namespace: str, uid: str) -> str:
    """Return how the names of all keys of a run begin: a user of Redis is limited to `ns:<namespace>:*`."""
    return f"ns:{namespace}:run:{uid}:"


LONGEST_FRAME_BYTES = 8 * 1024
"""JSON of one frame in a run's stream: what is longer is not sent, and not handed on."""
LONGEST_LOOK_BYTES = 64 * 1024
"""The same of one look of supervision."""


FLEET_RUNS = "pilothouse:fleet:runs"
"""Hash of a fleet's Redis: the runs of all its clusters."""
FLEET_CLUSTERS = "pilothouse:fleet:clusters"
"""Hash: when each cluster was there last."""
FLEET_CONTROL = "pilothouse:fleet:control"
"""Channel: what clusters tell each other."""


def fleet_row(cluster: str, namespace: str, name: str) -> str:
    """Return the field of a run in the hash of a fleet's runs."""
    return f"{cluster}/{namespace}/{name}"


def fleet_claim(letter_id: str) -> str:
    """Return the key by which one of a cluster's processes takes what is told to all of them."""
    return f"pilothouse:fleet:claim:{letter_id}"


def audience_token_file(audience: str) -> str:
    """Return the path, below the folder of projected tokens of a runner, of the token for one audience.

    An audience is any text (often an address), so the file is named by its hash.
    """
    return f"{short_hash(audience, 32)}/token"


def owner_reference(kind: str, name: str, uid: str) -> dict[str, str | bool]:
    """Return the reference by which an object of ours owns another, as its controller: it is deleted with its owner."""
    return {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid, "controller": True}
