"""What the comparison needs to know of an output, and how to open one of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from epochal.checkpoint.layout import SINK_LOG
from epochal.errors import OptionError
from epochal.files import UNBOUNDED, Bounds, open_files
from epochal.tools.switch.compare_rows import Row

DELTA_LOG = "_delta_log"


class Output(Protocol):
    """An output that consists of parts, usually files. A part never changes."""

    @property
    def name(self) -> str:
        """What it is, for reports: `Delta table /data/orders`."""
        ...

    @property
    def by_epoch(self) -> bool:
        """Whether it is known which epoch wrote what. If not, only the newest content is."""
        ...

    @property
    def doubt(self) -> str:
        """Why it may not be this query's output; empty if it is."""
        ...

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        """The parts that are visible after an epoch; None if that is not known any more."""
        ...

    def replaces(self, epochs: range) -> bool:
        """Whether one of these epochs has removed parts, and so may have replaced rows."""
        ...

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        """The rows in some parts."""
        ...


class WholeOutput:
    """An output of which nobody knows which epoch wrote what, so that it is compared as a whole."""

    by_epoch = False
    doubt = ""

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        del epoch
        return frozenset({"all of it"})

    def replaces(self, epochs: range) -> bool:
        del epochs
        return False


def open_output(
    location: str,
    query_id: str,
    catalog: Mapping[str, str],
    *,
    header: bool = False,
    bounds: Bounds = UNBOUNDED,
) -> Output:
    if location.startswith("iceberg:"):
        from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
        from epochal.tools.switch.iceberg_output import IcebergOutput

        options = IcebergSinkOptions(table=location.removeprefix("iceberg:"), catalog=catalog)
        return IcebergOutput(options, query_id)
    if location.startswith(("postgres://", "postgresql://")):
        from epochal.tools.switch.whole_outputs import PostgresOutput

        return PostgresOutput(location)
    if location.startswith("kafka://"):
        from epochal.tools.switch.whole_outputs import KafkaOutput

        return KafkaOutput(location)
    files = open_files(location, bounds=bounds)
    if files.info(DELTA_LOG) is not None:
        from epochal.tools.switch.delta_output import DeltaOutput

        return DeltaOutput(files, query_id)
    from epochal.tools.switch.file_output import FileOutput, PlainOutput

    if files.info(SINK_LOG) is not None:
        return FileOutput(files, header=header)
    if files.info("") is None:
        raise OptionError(f"There is no output at {location}. Check the path.")
    return PlainOutput(files, header=header)
