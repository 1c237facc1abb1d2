"""What every `Resources` does, tried on ConfigMaps and Secrets of the run's own namespace."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from pilothouse_engine.ports import ResourceFailure, ResourceReply, ResourceRequest, Resources


def ask(operation: Any, name: str = "", **fields: Any) -> ResourceRequest:
    given = {"api_version": "v1", "kind": "ConfigMap", **fields}
    return ResourceRequest(operation=operation, name=name, **given)


async def value_of(resources: Resources, request: ResourceRequest) -> Any:
    got = await resources.call(request)
    assert isinstance(got, ResourceReply), got
    return got.value


async def failure_of(resources: Resources, request: ResourceRequest) -> ResourceFailure:
    got = await resources.call(request)
    assert isinstance(got, ResourceFailure), got
    return got


def an_object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **fields.pop("metadata", {})}, **fields}


class ResourceContract:
    """A subclass brings the fixture `resources`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def name(self) -> str:
        return f"contract-{uuid.uuid4().hex[:8]}"

    async def test_an_object_is_made_read_changed_and_deleted(self, resources: Resources, name: str) -> None:
        body = an_object("ConfigMap", name, data={"a": "1", "b": "2"})
        made = await value_of(resources, ask("Create", name, body=body))
        assert (made["kind"], made["metadata"]["name"], made["data"]) == ("ConfigMap", name, {"a": "1", "b": "2"})
        patch = {"data": {"a": "3", "b": None}}
        assert (await value_of(resources, ask("Patch", name, body=patch)))["data"] == {"a": "3"}
        assert (await value_of(resources, ask("Get", name)))["data"] == {"a": "3"}
        await value_of(resources, ask("Delete", name))
        assert (await failure_of(resources, ask("Get", name))).kind == "NotFound"

    async def test_what_is_not_there_is_not_found(self, resources: Resources, name: str) -> None:
        for operation, body in (("Get", None), ("Patch", {"data": {}}), ("Delete", None)):
            failure = await failure_of(resources, ask(operation, name, body=body))
            assert (failure.kind, failure.sent, name in failure.message) == ("NotFound", False, False)

    async def test_a_name_is_taken_once(self, resources: Resources, name: str) -> None:
        body = an_object("ConfigMap", name, data={})
        await value_of(resources, ask("Create", name, body=body))
        failure = await failure_of(resources, ask("Create", name, body=body))
        assert (failure.kind, failure.sent) == ("AlreadyExists", False)

    async def test_a_list_holds_what_the_selector_selects(self, resources: Resources, name: str) -> None:
        for index, team in enumerate(("red", "red", "blue")):
            metadata = {"labels": {"team": team, "of": name}}
            body = an_object("ConfigMap", f"{name}-{index}", metadata=metadata)
            await value_of(resources, ask("Create", f"{name}-{index}", body=body))
        listed = await value_of(resources, ask("List", label_selector=f"of={name},team=red"))
        assert [item["metadata"]["name"] for item in listed["items"]] == [f"{name}-0", f"{name}-1"]
        none = await value_of(resources, ask("List", label_selector=f"of={name},team=green"))
        assert none["items"] == []

    async def test_the_data_of_a_secret_never_shows(self, resources: Resources, name: str) -> None:
        hidden = "aGlkZGVuLXZhbHVl"
        metadata = {"labels": {"of": name}}
        body = an_object("Secret", name, metadata=metadata, data={"password": hidden})
        answers = [
            await value_of(resources, ask("Create", name, kind="Secret", body=body)),
            await value_of(resources, ask("Get", name, kind="Secret")),
            await value_of(resources, ask("List", kind="Secret", label_selector=f"of={name}")),
            await value_of(
                resources, ask("Patch", name, kind="Secret", body={"metadata": {"annotations": {"a": "b"}}})
            ),
            await value_of(resources, ask("Delete", name, kind="Secret")),
        ]
        assert hidden not in json.dumps(answers)
        assert answers[1]["data"] == {"password": "[masked]"}
        assert [item["data"] for item in answers[2]["items"]] == [{"password": "[masked]"}]

    async def test_a_kind_that_is_not_served_is_said(self, resources: Resources, name: str) -> None:
        for fields in ({"kind": "Unheard"}, {"api_version": "nobody.example/v1", "kind": "Thing"}):
            failure = await failure_of(resources, ask("Get", name, **fields))
            assert failure.kind == "UnknownKind"
            assert fields["kind"] in failure.message
