"""Decides where the driver listens for its tasks, from Spark's own settings. Pure.

With a local master all tasks run on this machine, so the driver listens on loopback only, unless
`spark.driver.bindAddress` is set. On a cluster it listens where Spark's own driver does: at
`spark.driver.bindAddress`, which is `spark.driver.host` by default.

Note: `spark.driver.host` does not show whether tasks are remote. Spark sets it to a name of this
machine with a local master too.
"""

from __future__ import annotations

import re
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
