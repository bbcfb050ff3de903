"""Decides where the driver listens for its tasks, and finds the addresses of this machine.

With a local master all tasks run on this machine, so the driver listens on loopback only, unless
`spark.driver.bindAddress` is set. On a cluster it listens where Spark's own driver does: at
`spark.driver.bindAddress`, which is `spark.driver.host` by default.

Note: `spark.driver.host` does not show whether tasks are remote. Spark sets it to a name of this
machine with a local master too.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
_LOCAL = re.compile(r"local(?:\[.*\])?")


@dataclass(frozen=True, slots=True)
class DriverAddress:
    host: str
    """The host that tasks connect to."""
    bind: str
    """The name or address that the driver binds to."""


def driver_address(conf: Mapping[str, str]) -> DriverAddress:
    """Return loopback for a local master, else the addresses that Spark itself uses."""
    bind = conf.get("spark.driver.bindAddress")
    if not bind and _LOCAL.fullmatch(conf.get("spark.master", "")):
        return DriverAddress(LOOPBACK, LOOPBACK)
    host = conf.get("spark.driver.host")
    return DriverAddress(host or LOOPBACK, bind or host or LOOPBACK)


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
    infos = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    addresses = sorted(infos, key=lambda info: info[0] != socket.AF_INET)
    return str(addresses[0][4][0])
