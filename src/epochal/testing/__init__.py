"""Tools for tests: a driver that runs a query step by step, a manual clock, files, local servers.

`import epochal.testing` is cheap: the driver is imported on first use. It imports PySpark only for
SQL expressions, processors and DataFrames.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.testing.driver.fed_sources import frame, stream
    from epochal.testing.driver.histories import FuzzError
    from epochal.testing.driver.query_driver import Driver
    from epochal.testing.driver.rows import rows, rows_equal
    from epochal.testing.driver.spark_driver import SparkDriver

__all__ = ["Driver", "FuzzError", "SparkDriver", "frame", "rows", "rows_equal", "stream"]

_HOMES = {
    "Driver": "epochal.testing.driver.query_driver",
    "FuzzError": "epochal.testing.driver.histories",
    "SparkDriver": "epochal.testing.driver.spark_driver",
    "frame": "epochal.testing.driver.fed_sources",
    "rows": "epochal.testing.driver.rows",
    "rows_equal": "epochal.testing.driver.rows",
    "stream": "epochal.testing.driver.fed_sources",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
