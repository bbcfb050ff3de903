"""The output of a file sink, whose log tells which batch wrote which file, and its rows."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from epochal.checkpoint.file_log import FileSinkLog, live_batches
from epochal.checkpoint.layout import COMPACT_SUFFIX, SINK_LOG
from epochal.errors import OptionError, StorageError
from epochal.files import Files, Room, join_url
from epochal.tools.edit.edit_file_log import relative_to
from epochal.tools.switch.compare_rows import Row
from epochal.tools.switch.query_outputs import WholeOutput

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"


class FileOutput:
    """An output directory with `_spark_metadata`. Its parts are the paths in the log."""

    by_epoch = True
    doubt = ""

    def __init__(self, files: Files, *, header: bool = False) -> None:
        self._files, self._header = files, header
        self._log = FileSinkLog(files.at(SINK_LOG), read_only=True)
        self._batches = set(self._log.batch_ids())

    @property
    def name(self) -> str:
        return f"files in {self._files.url}"

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        first = min(self._batches, default=None)
        if first is None or epoch < first:
            # Nothing was written up to this epoch, unless a compaction has removed its entry.
            is_known = first is None or not self._log.path_of(first).endswith(COMPACT_SUFFIX)
            return frozenset() if is_known else None
        needed = live_batches(epoch, self._log.compact_interval)
        if not self._batches.issuperset(needed):
            return None
        return frozenset(entry.path for each in needed for entry in self._log.get(each) or ())

    def replaces(self, epochs: range) -> bool:
        del epochs
        return False

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        inside = relative_to(self._files)
        for path in sorted(parts):
            below = inside(path)
            if below is None:
                raise StorageError(
                    path,
                    f"the log of {self._files.url} lists this file, which is not below that "
                    f"directory. A log never leads to another place: name the directory in which "
                    f"the files are.",
                )
            yield from read_rows(self._files, below, header=self._header)


class PlainOutput(WholeOutput):
    """A directory of files without a log: nobody knows which epoch wrote what."""

    def __init__(self, files: Files, *, header: bool = False) -> None:
        self._files, self._header = files, header

    @property
    def name(self) -> str:
        return f"files in {self._files.url}, which have no log"

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        del epoch
        found = (path for path, _ in self._files.walk())
        return frozenset(
            path for path in found if not any(part[:1] in "._" for part in path.split("/"))
        )

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        for path in sorted(parts):
            yield from read_rows(self._files, path, header=self._header)


def partition_values(path: str) -> dict[str, str | None]:
    """The columns in the names of the directories above a file, as text."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals:
            found[unquote(name)] = None if value == NULL_DIRECTORY else unquote(value)
    return found


def read_rows(files: Files, path: str, *, header: bool) -> Iterator[Row]:
    """The rows of a file, with the columns of its directories. The name tells the format."""
    url, data = join_url(files.url, path), files.read(path, large=True)
    constant = partition_values(path)
    try:
        if path.endswith(".gz"):
            data = _gunzip(data, files.bounds.room(url))
        for row in _rows(path, data, header):
            yield {**row, **constant}
    except (pa.ArrowException, ValueError, EOFError, zlib.error, OSError, RecursionError) as error:
        raise StorageError(url, f"its rows cannot be read ({error})") from None


def _gunzip(data: bytes, room: Room) -> bytes:
    content = bytearray()
    with gzip.open(io.BytesIO(data)) as packed:
        while piece := packed.read(1 << 20):
            room.take(len(piece))
            content += piece
    return bytes(content)


def _rows(path: str, data: bytes, header: bool) -> Iterator[dict[str, Any]]:
    name = path.rpartition("/")[2].removesuffix(".gz")
    match name.rpartition(".")[2]:
        case "parquet":
            for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches():
                yield from batch.to_pylist()
        case "orc":
            from pyarrow import orc

            yield from orc.ORCFile(io.BytesIO(data)).read().to_pylist()
        case "json":
            yield from map(json.loads, filter(None, data.decode().split("\n")))
        case "txt":
            lines = data.decode().split("\n")
            yield from ({"value": line} for line in (lines if lines[-1] else lines[:-1]))
        case "csv":
            yield from _csv(data, header)
        case _:
            raise OptionError(
                f"The format of {path} is not known by its name. Only Parquet, ORC, JSON, CSV and "
                f"text files, plain or compressed with gzip, can be compared."
            )


def _csv(data: bytes, header: bool) -> Iterator[dict[str, Any]]:
    if not data.strip():
        return
    options = pacsv.ReadOptions(autogenerate_column_names=not header)
    strings = pacsv.ConvertOptions(strings_can_be_null=False)
    names = pacsv.open_csv(io.BytesIO(data), options).schema.names
    # Guessed types would depend on the rows of a file.
    strings.column_types = {name: pa.string() for name in names}
    yield from pacsv.read_csv(io.BytesIO(data), options, convert_options=strings).to_pylist()
