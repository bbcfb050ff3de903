"""The output of a file sink: its log tells which batch wrote which file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epochal.checkpoint.file_log import FileSinkLog, live_batches
from epochal.checkpoint.layout import COMPACT_SUFFIX, SINK_LOG
from epochal.errors import StorageError
from epochal.files import Files
from epochal.tools.edit.edit_file_log import relative_to
from epochal.tools.switch.compare_rows import Row
from epochal.tools.switch.output_contract import WholeOutput
from epochal.tools.switch.outputs.row_files import read_rows


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
