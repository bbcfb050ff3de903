"""Finds addresses of this machine: one that other hosts reach, and one to listen at."""

from __future__ import annotations

import socket

DISCARD_PORT = 9
"""Any port would do: nothing is sent to it."""


def local_host(peer: str) -> str:
    """The address of the local interface that routes to `peer`; `peer` can reach us there."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket only chooses a route. No packet leaves the machine.
        probe.connect((peer, DISCARD_PORT))
        return str(probe.getsockname()[0])


def listening_address(host: str) -> str:
    """The numeric address of a host name, because ZeroMQ listens at numeric addresses only.

    IPv4 is preferred. OSError if the name is unknown.
    """
    bare = host.removeprefix("[").removesuffix("]")
    found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    addresses = sorted(found, key=lambda each: each[0] != socket.AF_INET)
    return str(addresses[0][4][0])
