"""Addresses that no manifest may call, in every spelling."""

import pytest

from pilothouse_control.validation.urls import is_forbidden_host, url_problem


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.254.43518",
        "0251.0376.0251.0376",
        "169.16689662",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "METADATA.google.internal",
    ],
)
def test_metadata_addresses_are_known_in_every_spelling(host: str) -> None:
    assert is_forbidden_host(host)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "127.0.0.1", "2130706433", "example.org", "1.2.3.4.5", "999999999999", "09", "a9", "::1", ""]
)
def test_other_hosts_are_not(host: str) -> None:
    assert not is_forbidden_host(host)


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("https://crm.example/a?b=c", None),
        ("http://llm.models.svc:4000/v1", None),
        ("http://{{ host }}:{{ port }}/x", None),
        ("{{ base }}/x", None),
        ("http://[::1]:80/x", None),
        ("ftp://x/y", "it must begin with http"),
        ("file:///etc/passwd", "it must begin with http"),
        ("crm.example", "it must begin with http"),
        ("http:///x", "it names no host"),
        ("http://user:secret@x/y", "it holds a user name or password"),
        ("http://169.254.169.254./x", "metadata"),
        ("http://[fe80::1]/x", "metadata"),
        ("http://x:99999/", "it is no URL"),
        ("http://[::1/", "it is no URL"),
        ("http://a b/x", "it is no URL: its host holds white space"),
        ("http://a/b c", None),
    ],
)
def test_a_url_is_judged(url: str, want: str | None) -> None:
    problem = url_problem(url)
    assert (problem is None) == (want is None)
    assert want is None or want in str(problem)
