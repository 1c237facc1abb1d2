"""The Resource step: templates that cannot break out of their place, signals of failures, effects, repeated creates."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from pilothouse_api.names import ANNOTATION_IDEMPOTENCY_KEY
from pilothouse_api.structs import ResourceCall
from pilothouse_engine.catalog import default_effect
from pilothouse_engine.ports import Ports, ResourceFailure, ResourceRequest
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.steps.resource import execute_resource
from pilothouse_engine.testing.resources import MemoryResources
from unit.engine.steps.conftest import Stage

pytestmark = pytest.mark.anyio

MakeCall = Callable[..., StepCall]
KEY = "0123456789abcdef" * 4


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def a_step(operation: str, **fields: Any) -> ResourceCall:
    return ResourceCall.read({"operation": operation, "apiVersion": "v1", "kind": "ConfigMap", **fields})


class World:
    """Ports with a cluster in memory."""

    def __init__(self, stage: Stage, *objects: dict[str, Any]) -> None:
        self.cluster = MemoryResources(objects)
        self.ports: Ports = replace(stage.ports, resources=self.cluster)

    async def run(self, call: StepCall) -> StepEnd:
        return await execute_resource(call, self.ports)

    async def done(self, call: StepCall) -> StepDone:
        end = await self.run(call)
        assert isinstance(end, StepDone), end
        return end

    @property
    def request(self) -> ResourceRequest:
        return self.cluster.requests[-1]


async def test_an_object_is_read_into_the_context(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage, config_map("limits-a", max="3"))
    end = await world.done(make_call(a_step("Get", name="limits-{{ team }}"), {"team": "a"}))
    assert (end.signal, end.error_type) == ("default", None)
    assert end.writes == {"look-up_result": config_map("limits-a", max="3")}
    assert end.output == config_map("limits-a", max="3")
    named = await world.done(make_call(a_step("Get", name="limits-a", output="limits")))
    assert list(named.writes) == ["limits"]


async def test_a_list_holds_what_its_selector_selects(stage: Stage, make_call: MakeCall) -> None:
    mine, other = config_map("a"), config_map("b")
    mine["metadata"]["labels"] = {"team": "red"}
    world = World(stage, mine, other)
    end = await world.done(make_call(a_step("List", labelSelector="team={{ team }}"), {"team": "red"}))
    assert end.output["items"] == [mine]


async def test_timeout_bounds_and_namespace_reach_the_port(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage)
    params = a_step("Get", name="a", namespace="{{ ns }}", timeoutSeconds=7)
    await world.done(make_call(params, {"ns": "payments"}))
    assert (world.request.namespace, world.request.timeout, world.request.max_bytes) == ("payments", 7.0, 1000)
    await world.done(make_call(a_step("Get", name="a")))
    assert world.request.namespace is None


async def test_a_patch_fills_its_templates_in_and_keeps_values_as_they_are(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage, config_map("limits", max="3", min="1"))
    body = {"data": "{{ payload }}", "metadata": {"labels": {"by": "run-{{ n }}"}}}
    context = {"payload": {"max": "4", "min": None}, "n": 7}
    end = await world.done(make_call(a_step("Patch", name="limits", body=body), context))
    assert end.output["data"] == {"max": "4"}
    assert end.output["metadata"]["labels"] == {"by": "run-7"}


@pytest.mark.parametrize(
    ("fields", "context", "says"),
    [
        ({"operation": "Delete", "name": "{{ n }}"}, {"n": ""}, "resource.name is no name"),
        ({"operation": "Delete", "name": "{{ n }}"}, {"n": ".."}, "resource.name is no name"),
        ({"operation": "Delete", "name": "{{ n }}"}, {"n": "a/status"}, "resource.name is no name"),
        ({"operation": "Get", "name": "{{ n }}"}, {"n": "a%2fb"}, "resource.name is no name"),
        ({"operation": "Get", "name": "{{ n }}"}, {"n": "a\nb"}, "resource.name is no name"),
        ({"operation": "Get", "name": "{{ n }}"}, {"n": "\ud800"}, "resource.name is no name"),
        ({"operation": "Get", "name": "a", "namespace": "{{ n }}"}, {"n": "a/../b"}, "resource.namespace is no name"),
        ({"operation": "Get", "name": "a", "namespace": "{{ n }}"}, {"n": ""}, "resource.namespace is no name"),
        ({"operation": "List", "labelSelector": "a={{ n }}"}, {"n": "b,c!=d"}, "resource.labelSelector: a value"),
        ({"operation": "List", "labelSelector": "{{ n }}"}, {"n": " "}, "resource.labelSelector is empty"),
        ({"operation": "Patch", "name": "a", "body": {"data": "{{ n }}"}}, {"n": float("nan")}, "resource.body"),
        ({"operation": "Create", "body": {"data": {}}}, {}, "resource.name is not set"),
        ({"operation": "Create", "name": "a", "body": {"metadata": {"name": "{{ n }}"}}}, {"n": "b"}, "differ"),
        ({"operation": "Create", "name": "a", "body": {"kind": "{{ n }}"}}, {"n": "Secret"}, "resource.body.kind"),
        ({"operation": "Create", "name": "a", "body": {"metadata": "{{ n }}"}}, {"n": "x"}, "are objects"),
    ],
)
async def test_a_value_cannot_break_out_of_its_place_and_nothing_is_sent(
    fields: dict[str, Any], context: dict[str, Any], says: str, stage: Stage, make_call: MakeCall
) -> None:
    world = World(stage)
    params = ResourceCall.read({"apiVersion": "v1", "kind": "ConfigMap", **fields})
    end = await world.done(make_call(params, context, idempotency_key=KEY))
    assert (end.signal, end.error_type) == ("error", "InvalidRequest")
    assert says in (end.error_message or "")
    assert world.cluster.requests == []


async def test_a_whole_selector_may_come_from_the_context(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage)
    await world.done(make_call(a_step("List", labelSelector="{{ s }}"), {"s": "a=b,c=d"}))
    assert world.request.label_selector == "a=b,c=d"


async def test_a_path_that_is_missing_asks_nothing(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage)
    end = await world.done(make_call(a_step("Get", name="{{ nope }}")))
    assert (end.signal, end.error_type, world.cluster.requests) == ("error", "MissingContext", [])


@pytest.mark.parametrize(
    ("kind", "signal", "error_type"),
    [
        ("NotFound", "not_found", "NotFound"),
        ("Forbidden", "forbidden", "Forbidden"),
        ("Unauthorized", "error", "Unauthorized"),
        ("AlreadyExists", "error", "AlreadyExists"),
        ("Conflict", "error", "Conflict"),
        ("Invalid", "error", "InvalidRequest"),
        ("UnknownKind", "error", "UnknownKind"),
        ("Throttled", "error", "Throttled"),
        ("Unavailable", "error", "ServerError"),
        ("Timeout", "error", "Timeout"),
        ("Connection", "error", "Connection"),
        ("TooLarge", "error", "ResponseTooLarge"),
        ("NoCluster", "error", "NoCluster"),
    ],
)
async def test_a_failure_ends_with_its_signal_and_says_what_was_asked_but_no_value(
    kind: str, signal: str, error_type: str, stage: Stage, make_call: MakeCall
) -> None:
    world = World(stage)
    world.cluster.failures = [ResourceFailure(cast(Any, kind), "it said so", detail="its own words")]
    end = await world.done(make_call(a_step("Get", name="c-{{ customer }}"), {"customer": "Ada"}))
    assert (end.signal, end.error_type, end.writes) == (signal, error_type, {})
    assert end.error_message == "Get ConfigMap c-{{ customer }}: it said so"
    assert end.output == "its own words"


async def test_a_write_that_was_sent_and_not_answered_is_unknown_unless_it_may_be_repeated(
    stage: Stage, make_call: MakeCall
) -> None:
    params = a_step("Delete", name="a")
    lost = ResourceFailure("Timeout", "no answer within 30 s", sent=True)
    world = World(stage, config_map("a"), config_map("b"))
    world.cluster.lost = [lost, lost]
    assert await world.run(make_call(params)) == StepUnknown("Delete ConfigMap a: no answer within 30 s")
    repeatable = await world.done(make_call(replace_name(params, "b"), may_repeat=True))
    assert (repeatable.signal, repeatable.error_type) == ("error", "Timeout")


def replace_name(params: ResourceCall, name: str) -> ResourceCall:
    return replace(params, name=name)


# ---------------------------------------------------------------- creating


async def test_a_new_object_is_complete_and_carries_the_key_of_its_call(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage)
    body = {"metadata": {"annotations": {"by": "{{ who }}"}}, "data": {"a": "1"}}
    end = await world.done(make_call(a_step("Create", name="new", body=body), {"who": "me"}, idempotency_key=KEY))
    assert end.output == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "new", "annotations": {"by": "me", ANNOTATION_IDEMPOTENCY_KEY: KEY}},
        "data": {"a": "1"},
    }


async def test_a_generated_name_is_the_same_for_the_same_call(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage)
    params = a_step("Create", body={"metadata": {"generateName": "x" * 60}})
    call = make_call(params, idempotency_key=KEY, may_repeat=True)
    first, second = await world.done(call), await world.done(call)
    assert first.output["metadata"]["name"] == "x" * 52 + KEY[:10]
    assert "generateName" not in first.output["metadata"]
    assert second.output == first.output
    assert len(world.cluster.objects) == 1


async def test_a_create_that_is_repeated_finds_its_own_object_and_no_other(stage: Stage, make_call: MakeCall) -> None:
    world = World(stage)
    params = a_step("Create", name="new", body={"data": {"a": "1"}})
    call = make_call(params, idempotency_key=KEY, may_repeat=True)
    world.cluster.lost = [ResourceFailure("Connection", "gone", sent=True)]
    assert (await world.done(call)).error_type == "Connection"
    assert (await world.done(call)).signal == "default"

    other = await world.done(make_call(params, idempotency_key="f" * 64, may_repeat=True))
    assert (other.signal, other.error_type) == ("error", "AlreadyExists")
    once = await world.done(make_call(params, idempotency_key=KEY))
    assert (once.signal, once.error_type) == ("error", "AlreadyExists")


@pytest.mark.parametrize(
    ("operation", "want"),
    [("Get", "ReadOnly"), ("List", "ReadOnly"), ("Create", "Once"), ("Patch", "Once"), ("Delete", "Once")],
)
def test_reads_may_be_repeated_and_writes_happen_once_unless_the_author_says_more(operation: str, want: str) -> None:
    from pilothouse_api.structs import Step

    body = {"body": {}} if operation in ("Create", "Patch") else {}
    resource = {"operation": operation, "apiVersion": "v1", "kind": "ConfigMap", "name": "a", **body}
    assert default_effect(Step.read({"id": "s", "kind": "Resource", "resource": resource})) == want
