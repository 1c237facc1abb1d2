"""Looks of a cluster's runs: asked of the operator API with a person's token, checked by the plan."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import kubernetes.client as k8s
import pytest

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.cluster.recordings import ask_api
from pilothouse_cli.exits import CliError

RUN = AgentRun.model_validate({"metadata": {"name": "r1", "namespace": "team-a"}, "spec": {"agentRef": {"name": "a"}}})
PATH = "/api/agents/runs/team-a/r1/observations"


def configuration(token: str | None = "t-1") -> Any:
    """What a kubeconfig of this token comes to."""
    made: Any = k8s.Configuration()
    if token is not None:
        made.api_key["authorization"] = f"Bearer {token}"
    return made


class Api(HTTPServer):
    """An operator API with one answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None]] = []
        self.status, self.body = 200, b'{"items": []}'

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        api = self.server
        assert isinstance(api, Api)
        api.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(api.status)
        if api.status == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(api.body)

    def log_message(self, *arguments: Any) -> None:
        return


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_api_is_asked_about_the_run_with_the_token_of_the_kubeconfig(api: Api) -> None:
    api.body = json.dumps({"items": [{"now": "x"}]}).encode()
    assert ask_api(f"{api.url}/", RUN, configuration()) == {"items": [{"now": "x"}]}
    assert api.asked == [(PATH, "Bearer t-1")]


@pytest.mark.parametrize(
    ("status", "body", "want", "code"),
    [
        (404, b'{"title": "Not found", "detail": "there is no run r1"}', "there is no run r1", 5),
        (503, b'{"detail": "Redis is away"}', "Redis is away", 1),
        (200, b"<html>", "no JSON object", 1),
        (302, b"", "no JSON object", 1),
    ],
)
def test_what_the_api_refuses_is_said_in_a_sentence(api: Api, status: int, body: bytes, want: str, code: int) -> None:
    api.status, api.body = status, body
    with pytest.raises(CliError, match=want) as refused:
        ask_api(api.url, RUN, configuration())
    assert refused.value.code == code


@pytest.mark.parametrize("address", ["http://api.example.com", "api.example.com:8443", "ftp://x", "https://[", ""])
def test_a_token_is_sent_to_no_address_that_would_not_keep_it(address: str) -> None:
    with pytest.raises(CliError, match=r"in the open|no address"):
        ask_api(address, RUN, configuration())


def test_a_kubeconfig_without_a_token_says_so(api: Api) -> None:
    with pytest.raises(CliError, match="no token"):
        ask_api(api.url, RUN, configuration(None))
    assert api.asked == []


def test_an_api_that_does_not_answer_says_so() -> None:
    with pytest.raises(CliError, match="does not answer"):
        ask_api("http://127.0.0.1:1", RUN, configuration())
