"""Finds the address by which other hosts reach this machine."""

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
