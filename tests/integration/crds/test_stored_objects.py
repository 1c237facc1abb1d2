"""Objects as people write them: yesterday's are taken and come back as they were written; the largest are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.crds.contract_world import World
from integration.crds.kube_callers import must
from integration.crds.largest_objects import LARGEST
from pilothouse_api.v1alpha1 import parse_object

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "crds"


def _golden(path: Path, name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(path.read_text())
    raw["metadata"]["name"] = name
    return raw


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_yesterdays_object_is_taken_and_comes_back_as_it_was_written(world: World, path: Path) -> None:
    want = _golden(path, world.name("golden"))
    kind, name = want["kind"], want["metadata"]["name"]

    signer = want["spec"].get("control", {}).get("by")
    author = world.user(signer) if signer else world.admin
    created = must(author.create(world.namespace, {key: want[key] for key in want if key != "status"}))
    if "status" in want:
        must(world.admin.patch(world.namespace, kind, name, {"status": want["status"]}, status=True))
    got = must(world.admin.get(world.namespace, kind, name))

    assert created.get("status") in (None, {"observedGeneration": -1})
    assert got["spec"] == want["spec"]
    assert got.get("status") == want.get("status", {"observedGeneration": -1})


def test_every_kind_has_a_golden_object() -> None:
    kinds = {yaml.safe_load(path.read_text())["kind"] for path in GOLDEN.glob("*.yaml")}

    assert kinds == {"Agent", "Workflow", "Supervisor", "AgentRun"}


def test_a_fresh_object_is_not_judged_current(world: World) -> None:
    run = world.run()

    assert world.read(run)["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_model_read_it_writes_as_it_was(path: Path) -> None:
    raw = yaml.safe_load(path.read_text())

    assert parse_object(raw).to_raw() == raw


@pytest.mark.parametrize("raw", LARGEST, ids=lambda raw: raw["metadata"]["name"])
def test_an_object_with_every_list_and_map_at_its_bound_is_taken_and_can_be_changed(
    world: World, raw: dict[str, Any]
) -> None:
    parse_object(raw)
    must(world.admin.create(world.namespace, raw))

    must(world.admin.patch(world.namespace, raw["kind"], raw["metadata"]["name"], {"metadata": {"labels": {"a": "b"}}}))


def test_a_run_takes_as_many_decisions_as_fit(world: World) -> None:
    ids = [f"t{turn}-0-{'0' * 8}" for turn in range(64)]
    run = world.run({"run": {"attempt": 1, "pendingApprovals": [{"callId": call, "tool": "t"} for call in ids]}})
    decisions = {call: {"decision": "Approve", "arguments": {"amount": 1}, "reason": "x" * 1024} for call in ids}

    must(world.admin.control(world.namespace, run, approvals=decisions))

    must(world.admin.control(world.namespace, run, mode="Pause"))
    assert len(world.read(run)["spec"]["control"]["approvals"]) == 64


def test_one_steer_more_than_fit_is_refused_with_the_limit(world: World) -> None:
    run = world.run(control={"steer": {f"a{n}": {"message": "x"} for n in range(64)}})

    refused = world.admin.control(world.namespace, run, steer={"a64": {"message": "x"}})

    assert refused.status == 422
    assert "spec.control.steer: Too many: 65: must have at most 64 items" in refused.message
