"""Which addresses a tool may reach: link-local ones and those of cloud metadata services give out credentials."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Link-local (169.254.169.254 is in it) and multicast are judged by their class; these lie in ordinary ranges.
METADATA_ADDRESSES: frozenset[Address] = frozenset(
    ip_address(text)
    for text in (
        "fd00:ec2::254",  # AWS, IPv6
        "fd20:ce::254",  # Google, IPv6
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle
    )
)
_NAT64 = ip_network("64:ff9b::/96")


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks in CIDR form; raises ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)


def is_refused(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """Tell whether an address may not be reached."""
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_refused(inner, allowed)
    if any(address in network for network in allowed if network.version == address.version):
        return False
    # 0.0.0.0 and :: connect to this host; what is reserved has no server.
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address in METADATA_ADDRESSES
        or (isinstance(address, IPv4Address) and (address.is_reserved or address in ip_network("0.0.0.0/8")))
    )


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to (mapped, 6to4, NAT64)."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host, in the order of the resolver, each once; raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope (fe80::1%eth0) only goes with link-local addresses.
    return list(dict.fromkeys(ip_address(str(info[4][0]).split("%")[0]) for info in found))
