"""Decides where the driver listens for its tasks, from Spark's own settings. Pure.

What a reader would get wrong: Spark fills in `spark.driver.host` with a name of this machine even
where nothing ever leaves it. With a local master all tasks are processes of this machine, so the
network need not see a port of ours, unless a bind address was asked for.
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
    """By which tasks reach the driver."""
    bind: str
    """What the driver binds to."""


def driver_address(conf: Mapping[str, str]) -> DriverAddress:
    """Loopback with a local master, else what Spark itself uses."""
    bind = conf.get("spark.driver.bindAddress")
    if not bind and _LOCAL.fullmatch(conf.get("spark.master", "")):
        return DriverAddress(LOOPBACK, LOOPBACK)
    return DriverAddress(conf.get("spark.driver.host") or LOOPBACK, bind or "0.0.0.0")
