"""Where a golden case lives on disk: made by Spark, or unpacked for a test."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where one case lives. Everything a query touches is below `base`."""

    base: Path

    @property
    def checkpoint(self) -> Path:
        return self.base / "checkpoint"

    @property
    def output(self) -> Path:
        return self.base / "output"

    @property
    def input(self) -> Path:
        return self.base / "input"

    @property
    def rest(self) -> Path:
        return self.base / "rest"
