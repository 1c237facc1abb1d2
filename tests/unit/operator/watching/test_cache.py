"""The picture of the cluster: the newest version wins, whatever order versions come in."""

from __future__ import annotations

from typing import Any

from pilothouse_api import names
from pilothouse_operator.watching.cache import Cache, Key, trim

KEY = Key("AgentRun", "ns", "r1")


def run(version: int, uid: str = "u1", **more: Any) -> dict[str, Any]:
    metadata = {"name": "r1", "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "AgentRun", "metadata": metadata, "spec": {"input": {"a": 1}}, "status": {}, **more}


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()

    assert cache.apply(run(10))
    assert not cache.apply(run(9))
    assert not cache.apply(run(10))
    assert cache.apply(run(11))
    found = cache.get(KEY)
    assert found is not None and found["metadata"]["resourceVersion"] == "11"


def test_the_late_answer_of_a_write_does_not_bring_back_what_was_deleted() -> None:
    cache = Cache()
    cache.apply(run(10))
    assert cache.apply(run(12), is_deleted=True)

    assert not cache.apply(run(11))
    assert cache.get(KEY) is None
    assert cache.keys("AgentRun") == []


def test_the_deletion_of_a_predecessor_leaves_the_successor_alone() -> None:
    cache = Cache()
    cache.apply(run(20, uid="u2"))

    assert not cache.apply(run(21, uid="u1"), is_deleted=True)
    assert cache.get(KEY) is not None


def test_keys_are_listed_by_kind_and_namespace() -> None:
    cache = Cache()
    cache.apply(run(1))
    cache.apply({"kind": "Agent", "metadata": {"name": "a", "namespace": "other", "uid": "x", "resourceVersion": "2"}})

    assert cache.keys("AgentRun", "ns") == cache.keys("AgentRun") == [KEY]
    assert cache.keys("AgentRun", "other") == []
    assert (cache.count("AgentRun"), cache.count("Agent"), len(cache)) == (1, 1, 2)


def test_what_no_decision_reads_is_not_kept() -> None:
    report = {"attempt": 1, "trace": [1] * 100, "steps": [{}], "turn": 3}
    raw = run(1, status={"plan": {"name": "p"}, "run": report})
    raw["metadata"] |= {"managedFields": [1], "annotations": {"a": "b"}}

    trimmed = trim(raw)

    assert trimmed["status"]["run"] == {"attempt": 1, "turn": 3}
    assert "input" not in trimmed["spec"]
    assert not {"managedFields", "annotations"} & trimmed["metadata"].keys()
    assert "trace" in raw["status"]["run"]


def test_the_input_is_kept_until_there_is_a_plan() -> None:
    assert trim(run(1))["spec"]["input"] == {"a": 1}


def test_of_configmaps_only_artifacts_keep_their_data() -> None:
    def config_map(labels: dict[str, str]) -> dict[str, Any]:
        return {"kind": "ConfigMap", "metadata": {"name": "c", "labels": labels}, "data": {"1": "text"}}

    assert "data" in trim(config_map({names.LABEL_ARTIFACT: "prompt"}))
    assert "data" not in trim(config_map({}))


def test_a_deleted_pod_is_remembered_as_it_was_last_until_there_is_another_of_its_name() -> None:
    def pod(uid: str, version: int, phase: str) -> dict[str, Any]:
        metadata = {"name": "p", "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
        return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}}

    cache, key = Cache(), Key("Pod", "ns", "p")
    cache.apply(pod("a", 1, "Pending"))
    cache.apply(pod("a", 2, "Failed"), is_deleted=True)

    ghost = cache.ghost(key)
    assert cache.get(key) is None
    assert ghost is not None and ghost["status"]["phase"] == "Failed"
    cache.apply(pod("b", 3, "Pending"))
    assert cache.ghost(key) is None
