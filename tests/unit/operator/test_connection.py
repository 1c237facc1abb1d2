"""Reaching the API server: credentials, errors, and what is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pilothouse_kubernetes.client import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Throttled,
    Unavailable,
    to_error,
)
from pilothouse_kubernetes.connection import Credentials, LoginError, find_credentials


def kubeconfig(folder: Path, user: dict[str, str], **cluster: str) -> Path:
    path = folder / "config"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://k.example:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_kubeconfig_with_a_token_is_read(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {"token": "secret"}, **{"certificate-authority-data": "Q0E="})

    found = find_credentials(str(path))

    assert found == Credentials("https://k.example:6443", "team", ca_data="CA", token="secret")
    assert "secret" not in repr(found)


def test_a_certificate_is_read_inline_or_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "me.key").write_text("KEY")

    found = find_credentials(str(kubeconfig(tmp_path, {"client-certificate-data": "Q1JU", "client-key": "me.key"})))

    assert (found.client_certificate, found.client_key) == ("CRT", "KEY")


@pytest.mark.parametrize("user", [{"exec": "x"}, {"auth-provider": "x"}])
def test_a_login_by_plug_in_is_refused_with_a_way_out(tmp_path: Path, user: dict[str, str]) -> None:
    with pytest.raises(LoginError, match="use a token or a certificate"):
        find_credentials(str(kubeconfig(tmp_path, user)))


def test_what_is_no_kubeconfig_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("[1, 2]")

    with pytest.raises(LoginError, match="is no kubeconfig"):
        find_credentials(str(path))
    with pytest.raises(LoginError, match="does not exist"):
        find_credentials(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("status", "reason", "want"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unavailable),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Throttled),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (418, "", ApiError),
    ],
)
def test_each_refusal_has_its_exception(status: int, reason: str, want: type[ApiError]) -> None:
    error = to_error(status, f'{{"message": "why", "reason": "{reason}"}}', "7")

    assert type(error) is want
    assert (str(error), error.status) == ("why", status)


@pytest.mark.parametrize("body", ["<html>gateway</html>", "", "[1]", '{"reason": 1}', "null"])
def test_an_answer_that_is_no_status_is_shown_as_it_is(body: str) -> None:
    assert str(to_error(502, body)) == body


def test_the_wait_that_a_server_asks_for_is_kept() -> None:
    assert to_error(429, "", "7").retry_after == 7
    assert to_error(429, "", "soon").retry_after is None
