"""Addresses that no manifest may call: link-local ones, where clouds hand out credentials, in every spelling."""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_METADATA_HOSTS = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
_NUMBER = re.compile(r"^(0x[0-9a-f]+|[0-9]+)$")


def url_problem(url: str) -> str | None:
    """Return why a URL is refused, or None. What a template fills in is judged by the engine, when it is known."""
    scheme, separator, _ = url.partition("://")
    if scheme.startswith("{{"):
        return None
    if not separator or scheme.lower() not in ("http", "https"):
        return "it must begin with http:// or https://"
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port if "{{" not in parts.netloc else None
    except ValueError as error:
        return f"it is no URL: {error}"
    if "{{" in parts.netloc:
        return None
    return _host_problem(parts, host)


def _host_problem(parts: SplitResult, host: str) -> str | None:
    if not host:
        return "it names no host"
    if any(letter.isspace() for letter in host):
        return "it is no URL: its host holds white space"
    if parts.username is not None or parts.password is not None:
        return "it holds a user name or password; secrets stand in headers with valueFrom.secretKeyRef"
    if is_forbidden_host(host):
        return f"{host} is a link-local or metadata address, where clouds hand out credentials"
    return None


def is_forbidden_host(host: str) -> bool:
    """Tell whether a host, as it is written, is a link-local or metadata address."""
    if host.lower() in _METADATA_HOSTS:
        return True
    address = _address(host.lower())
    if address is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_link_local or address in _METADATA_ADDRESSES


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return _loose_ipv4(host)


def _loose_ipv4(host: str) -> ipaddress.IPv4Address | None:
    """Return the address that a C library reads in `2852039166`, `0xa9.254.43518` or `0251.0376.0251.0376`."""
    parts = host.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        numbers = [int(part, 8 if part.startswith("0") and part.isdigit() and part != "0" else 0) for part in parts]
    except ValueError:
        return None
    *heads, last = numbers
    if any(number > 255 for number in heads) or last >= 256 ** (4 - len(heads)):
        return None
    value = last
    for index, number in enumerate(heads):
        value += number << (8 * (3 - index))
    return ipaddress.IPv4Address(value)
