"""Hostile manifests: whatever is written, validation says something and never raises, hangs or repeats itself."""

import copy
import json
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_control.documents import parse_documents
from pilothouse_control.resolution import NotResolved, resolve_plan
from pilothouse_control.validation import Sources, as_document, validate
from pilothouse_control.validation.shape import parse
from pilothouse_control.world import References
from unit.control.manifests import Raw, a_config_map, a_run, a_workflow, agent_step, an_agent
from unit.control.test_shape import SAMPLES
from unit.engine.hostile import examples

SCALARS: list[Any] = [None, True, 0, -1, 2**70, 1.5, "", "x", "on", "{{ a..b }}", "169.254.169.254", "\ud800", [], {}]


def mutate(raw: Raw, seed: int) -> Raw:
    """Change a few places of a manifest: other values, other types, keys removed, added and renamed."""
    chance = random.Random(seed)
    changed = copy.deepcopy(raw)
    for _ in range(chance.randint(1, 4)):
        places = [(node, key) for node, key in containers(changed) if key not in ("apiVersion",)]
        node, key = chance.choice(places)
        match chance.randint(0, 3):
            case 0:
                node[key] = copy.deepcopy(chance.choice(SCALARS))
            case 1:
                del node[key]
            case 2 if isinstance(node, dict):
                node[str(chance.choice(["name", "inline", "step", "kind", "Extra", "max_iterations"]))] = node.pop(key)
            case _:
                node[key] = [node[key], node[key]] if isinstance(node[key], dict) else {"name": node[key]}
    return changed


def containers(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        found += [(node, key) for key in keys]
        pending += [node[key] for key in keys if isinstance(node[key], dict | list)]
    return found


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(sorted(SAMPLES)), seed=st.integers(0, 10**9))
def test_a_broken_manifest_never_raises(kind: str, seed: int) -> None:
    broken = mutate(SAMPLES[kind], seed)
    others = [an_agent(), a_config_map("tone", "steering", **{"1": "a"})]
    documents = [as_document(raw) for raw in (broken, *others)]
    findings = validate(Sources(documents, is_complete=seed % 2 == 0), durable_journal=False, strict=True)
    assert all(finding.what and "Traceback" not in finding.what for finding in findings)
    run, _ = parse(as_document(broken)) if kind == "AgentRun" else (None, [])
    if isinstance(run, AgentRun):
        assert isinstance(resolve_plan(run, References()), NotResolved)


@settings(max_examples=examples(150), deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_refused(text: str) -> None:
    for document in parse_documents(text):
        json.dumps(document.raw)
        assert validate(Sources([document]), durable_journal=True) is not None


@settings(max_examples=examples(100), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
        max_leaves=20,
    )
)
def test_what_json_writes_is_read_back(value: Any) -> None:
    text = json.dumps({"a": value})
    documents = parse_documents(text)
    assert [(document.raw, document.problems) for document in documents] == [({"a": value}, ())]


def worst_workflow() -> Raw:
    steps = []
    for index in range(100):
        step = agent_step(f"s{index}", outcome={"enum": [f"o{n}" for n in range(20)]})
        step["routes"] = {f"o{n}": f"s{(index + n) % 100}" for n in range(20)} | {"error": "end"}
        steps.append(step)
    return a_workflow(*steps, input={"schema": {"type": "object", "properties": {f"k{n}": {} for n in range(200)}}})


@pytest.mark.parametrize("raw", [worst_workflow()])
def test_a_workflow_of_the_largest_size_is_judged_soon(raw: Raw) -> None:
    began = time.process_time()
    findings = validate(Sources([as_document(raw)]), durable_journal=True)
    assert [f for f in findings if f.is_error] == []
    assert time.process_time() - began < 10


@pytest.mark.slow
def test_a_chain_of_agents_that_reach_each_other_is_followed_once() -> None:
    agents = [
        an_agent(
            f"a{index}",
            tools=[
                {"name": f"t{other}", "description": "x", "agentRef": {"name": f"a{other}"}}
                for other in range(40)
                if other != index
            ],
        )
        for index in range(40)
    ]
    began = time.process_time()
    findings = validate(Sources([as_document(raw) for raw in agents]), durable_journal=True)
    assert sum(1 for finding in findings if finding.check == "AgentReachesItself") == 40 * 39
    assert time.process_time() - began < 20


def test_a_run_whose_values_cannot_be_written_is_refused_in_words() -> None:
    run = AgentRun.model_validate(a_run(input={"x": "\udcff"}))
    outcome = resolve_plan(run, References())
    assert isinstance(outcome, NotResolved)
