"""The operator's picture of the cluster: trimmed copies of objects, the newest version of each.

Fed by watches, lists and the answers of the operator's own writes, in any order; an older version never replaces a
newer one. Versions are compared as numbers, which Kubernetes guarantees from 1.35 on and etcd has always given.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pilothouse_api import names

Raw = dict[str, Any]
TOMBSTONES = 4096
GHOSTS = 1024


class Key(NamedTuple):
    """Which object: kind, namespace, name."""

    kind: str
    namespace: str
    name: str


class Cache:
    """Objects by key. Stored objects are shared: nobody changes them."""

    def __init__(self) -> None:
        self._objects: dict[Key, Raw] = {}
        self._by_kind: dict[str, dict[str, set[Key]]] = defaultdict(lambda: defaultdict(set))
        self._runs_of: dict[Key, set[Key]] = defaultdict(set)
        # Uids of deleted objects, so that the late answer of a write does not bring one back.
        self._tombstones: OrderedDict[str, None] = OrderedDict()

        # Deleted pods as they were last: nobody may have looked between the start of a pod and its deletion.
        self._ghosts: OrderedDict[Key, Raw] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Raw | None:
        """Return the object or None."""
        return self._objects.get(key)

    def ghost(self, key: Key) -> Raw | None:
        """Return a deleted pod as it was last seen, for a while; None where there is one of that name again."""
        return None if key in self._objects else self._ghosts.get(key)

    def count(self, kind: str) -> int:
        """Return how many objects of a kind there are."""
        return sum(len(keys) for keys in self._by_kind[kind].values())

    def keys(self, kind: str, namespace: str | None = None) -> list[Key]:
        """Return the keys of a kind, of one namespace or of all."""
        spaces = self._by_kind[kind]
        if namespace is not None:
            return list(spaces.get(namespace, ()))
        return [key for keys in spaces.values() for key in keys]

    def objects(self, kind: str, namespace: str | None = None) -> Iterator[Raw]:
        """Yield the objects of a kind."""
        for key in self.keys(kind, namespace):
            yield self._objects[key]

    def runs_of(self, workflow: Key) -> list[Raw]:
        """Return the runs of a workflow."""
        return [self._objects[key] for key in self._runs_of.get(workflow, ())]

    def apply(self, raw_object: Mapping[str, Any], is_deleted: bool = False) -> bool:
        """Take a version of an object; tell whether the picture changed."""
        key = key_of(raw_object)
        known = self._objects.get(key)
        uid = raw_object["metadata"].get("uid", "")
        if is_deleted:
            self._keep_ghost(key, raw_object)
            return self._drop(key, known, uid)
        if uid in self._tombstones or (known is not None and version_of(known) >= version_of(raw_object)):
            return False
        self._objects[key] = trim(raw_object)
        self._by_kind[key.kind][key.namespace].add(key)
        workflow = workflow_of(raw_object)
        if workflow is not None:
            self._runs_of[workflow].add(key)
        return True

    def _keep_ghost(self, key: Key, raw_object: Mapping[str, Any]) -> None:
        if key.kind != "Pod":
            return
        self._ghosts.pop(key, None)
        self._ghosts[key] = trim(raw_object)
        if len(self._ghosts) > GHOSTS:
            self._ghosts.popitem(last=False)

    def _drop(self, key: Key, known: Raw | None, uid: str) -> bool:
        self._tombstones[uid] = None
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)
        if known is None or known["metadata"].get("uid", "") != uid:
            return False
        del self._objects[key]
        self._by_kind[key.kind][key.namespace].discard(key)
        workflow = workflow_of(known)
        if workflow is not None:
            self._runs_of[workflow].discard(key)
        return True


def key_of(raw_object: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    metadata = raw_object["metadata"]
    return Key(raw_object["kind"], metadata.get("namespace", ""), metadata["name"])


def workflow_of(raw_object: Mapping[str, Any]) -> Key | None:
    """Return the key of the workflow that a run executes and counts for.

    None for a run of an Agent, for a child (it goes with its parent, whoever's workflow it executes) and for other
    objects.
    """
    if raw_object["kind"] != "AgentRun" or parent_key(raw_object) is not None:
        return None
    name = raw_object.get("spec", {}).get("workflowRef", {}).get("name")
    return Key("Workflow", raw_object["metadata"].get("namespace", ""), name) if name else None


def parent_key(raw_run: Mapping[str, Any]) -> Key | None:
    """Return the key of the run that a run is a child of; None for one that a person or a trigger made."""
    metadata = raw_run["metadata"]
    for owner in metadata.get("ownerReferences", ()):
        is_run = owner.get("kind") == "AgentRun" and str(owner.get("apiVersion", "")).startswith(f"{names.GROUP}/")
        if is_run and owner.get("controller"):
            return Key("AgentRun", metadata.get("namespace", ""), str(owner.get("name", "")))
    return None


def version_of(raw_object: Mapping[str, Any]) -> int:
    """Return the resourceVersion as a number; 0 where there is none."""
    text = raw_object["metadata"].get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


def trim(raw_object: Mapping[str, Any]) -> Raw:
    """Return a copy without what no decision reads and what takes most of the memory."""
    metadata = {name: value for name, value in raw_object["metadata"].items() if name not in _UNREAD_METADATA}
    trimmed = {**raw_object, "metadata": metadata}
    if raw_object["kind"] == "AgentRun":
        _trim_run(trimmed)
    elif raw_object["kind"] == "Pod":
        spec = raw_object.get("spec", {})
        trimmed["spec"] = {name: spec[name] for name in ("nodeName", "schedulingGates") if name in spec}
    elif raw_object["kind"] == "ConfigMap" and names.LABEL_ARTIFACT not in metadata.get("labels", {}):
        trimmed.pop("data", None)
    return trimmed


_UNREAD_METADATA = frozenset({"managedFields", "annotations", "selfLink"})


def _trim_run(run: Raw) -> None:
    status = dict(run.get("status", {}))
    if isinstance(status.get("run"), dict):
        status["run"] = {name: value for name, value in status["run"].items() if name not in ("trace", "steps")}
    run["status"] = status
    if status.get("supervision"):
        status["supervision"] = _share_copies(status["supervision"])
    if "plan" in status:  # the input stands in the plan from now on
        run["spec"] = {name: value for name, value in run["spec"].items() if name != "input"}


_COPIES: OrderedDict[tuple[str, int], Raw] = OrderedDict()
SHARED_COPIES = 1024


def _share_copies(supervision: Raw) -> Raw:
    """Return the record with the copies of supervisors shared: each run has one of each that watches it."""
    supervisors = {
        uid: {**record, **_shared(uid, record)} for uid, record in supervision.get("supervisors", {}).items()
    }
    return {**supervision, "supervisors": supervisors} if supervisors else supervision


def _shared(uid: str, record: Raw) -> Raw:
    if "spec" not in record:
        return {}
    key, spec = (uid, record.get("generation", 0)), record["spec"]
    known = _COPIES.get(key)
    if known is None or known != spec:
        known = _COPIES[key] = spec
        if len(_COPIES) > SHARED_COPIES:
            _COPIES.popitem(last=False)
    return {"spec": known}
