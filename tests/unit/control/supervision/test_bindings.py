"""Who watches a run."""

from typing import Any

from pilothouse_api.v1alpha1 import AgentRun, Supervisor
from pilothouse_api.v1alpha1.agentrun import Supervision
from pilothouse_control.supervision import find_bound
from pilothouse_control.supervision.bindings import MAX_COPIES_BYTES, MAX_SUPERVISORS, Bindings
from unit.control.supervision.worlds import World, a_guard, a_judge, a_plan, a_snapshot


def a_run(supervision: Supervision | None = None, **labels: str) -> AgentRun:
    status = {"supervision": supervision.to_raw()} if supervision is not None else {}
    metadata = {"name": "run-1", "namespace": "ns", "uid": "u-run", "labels": labels}
    return AgentRun.model_validate({"kind": "AgentRun", "metadata": metadata, "spec": {}, "status": status})


def names(bindings: Bindings) -> list[str]:
    return [binding.name for binding in bindings.bound.values()]


def by_label(name: str, **labels: str) -> Supervisor:
    return a_guard(name, selector={"matchLabels": labels})


def unselecting(name: str, **spec: Any) -> Supervisor:
    return a_guard(name, selector=None, **spec)


def test_references_and_selectors_bind_and_both_at_once_count_once() -> None:
    supervisors = [by_label("mine", team="pay"), by_label("other", team="sell"), unselecting("named"), a_guard("all")]
    bindings = find_bound(a_run(team="pay"), ["named", "mine"], supervisors)
    assert sorted(names(bindings)) == ["all", "mine", "named"]
    assert bindings.problem is None


def test_a_referenced_one_that_is_missing_keeps_a_run_from_starting() -> None:
    bindings = find_bound(a_run(), ["gone"], [a_guard("there")])
    assert bindings.missing == ("gone",)
    assert bindings.problem == ("SupervisorNotFound", "there is no Supervisor gone, which spec.supervisorRefs names")


def test_one_that_is_being_deleted_is_not_there() -> None:
    guard = a_guard("guard")
    metadata = guard.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    bindings = find_bound(a_run(), ["guard"], [guard.model_copy(update={"metadata": metadata})])
    assert bindings.missing == ("guard",)


def test_one_that_was_bound_and_is_gone_is_not_missing() -> None:
    world = World([unselecting("named")], plan=a_plan("named"))
    world.settle(a_snapshot(1))
    bindings = find_bound(a_run(world.record), ["named"], [])
    assert bindings.missing == ()
    [binding] = bindings.bound.values()
    assert binding.is_deleted


def test_a_binding_lasts_though_labels_and_selectors_change() -> None:
    world = World([a_guard("guard")])
    world.settle(a_snapshot(1))
    changed = by_label("guard", team="sell")
    [binding] = find_bound(a_run(world.record), [], [changed]).bound.values()
    assert not binding.is_deleted
    assert binding.spec == changed.spec


def test_a_child_is_watched_by_whoever_watches_its_parent_and_its_parents_parents() -> None:
    grandparent = World([by_label("top", level="one"), a_guard("gone", selector={"matchLabels": {"level": "one"}})])
    grandparent.raw["metadata"]["labels"] = {"level": "one"}
    grandparent.settle(a_snapshot(1))
    grandparent.supervisors.pop()
    parent = World(grandparent.supervisors, parent=grandparent.record)
    parent.settle(a_snapshot(1))
    child = World([*grandparent.supervisors, by_label("own", level="three")], parent=parent.record)
    child.raw["metadata"]["labels"] = {"level": "three"}
    child.settle(a_snapshot(1))
    assert {one.name: one.is_deleted for one in child.record.supervisors.values()} == {
        "top": False,
        "gone": True,
        "own": False,
    }


def test_a_run_has_at_most_sixteen_and_says_which_is_one_too_many() -> None:
    bindings = find_bound(a_run(), [], [a_guard(f"g{n:02d}") for n in range(MAX_SUPERVISORS + 1)])
    assert len(bindings.bound) == MAX_SUPERVISORS
    assert bindings.excess == ("g16",)
    reason, message = bindings.problem or ("", "")
    assert reason == "TooManySupervisors"
    assert "g16 is one too many: 16 supervisors" in message


def test_whoever_is_bound_stays_bound_when_others_come() -> None:
    world = World([a_guard(f"g{n:02d}") for n in range(1, MAX_SUPERVISORS + 1)])
    world.settle(a_snapshot(1))
    world.supervisors.insert(0, a_guard("g00"))
    bindings = find_bound(a_run(world.record), [], world.supervisors)
    assert "g00" not in names(bindings)
    assert bindings.excess == ("g00",)


def test_copies_that_would_fill_the_status_of_a_run_are_not_taken() -> None:
    large = [a_guard(f"g{n:02d}", judge=a_judge(criteria={"inline": "é" * 16_000})) for n in range(10)]
    bindings = find_bound(a_run(), [], large)
    assert len(bindings.bound) == MAX_COPIES_BYTES // 32_000
    assert len(bindings.excess) == 10 - len(bindings.bound)


def test_a_change_that_would_not_fit_leaves_the_copy_in_force() -> None:
    text = {"inline": "é" * 16_000}
    world = World([a_guard(f"g{n}", judge=a_judge(criteria=text)) for n in range(8)] + [a_guard("small")])
    world.settle(a_snapshot(1))
    world.supervisors[-1] = a_guard("small", judge=a_judge(criteria=text), generation=2)
    bindings = find_bound(a_run(world.record), [], world.supervisors)
    assert bindings.bound["uid-small"].generation == 1
    assert bindings.excess == ("small",)
