"""A checkpoint opened read-only: nothing here creates, changes or deletes a file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from epochal.checkpoint.entries import CommitLog, OffsetLog, QueryMetadata
from epochal.checkpoint.layout import COMMITS, OFFSETS, SOURCES, STATE, crc_target, source_log_path
from epochal.checkpoint.metadata_log import MetadataLog, storage_errors
from epochal.checkpoint.operator_metadata import OperatorMetadata, list_operators, read_operator
from epochal.checkpoint.restart import RestartAction, RestartPlan, plan_restart
from epochal.errors import CheckpointError, StorageError
from epochal.files import Files, join_url, open_files

if TYPE_CHECKING:
    from epochal.checkpoint.file_log import SourceLog

T = TypeVar("T")


class Checkpoint:
    """The checkpoint at a path or URL."""

    def __init__(self, location: str | Files) -> None:
        self.files = open_files(location) if isinstance(location, str) else location
        self.offsets = OffsetLog(self.files.at(OFFSETS), read_only=True)
        self.commits = CommitLog(self.files.at(COMMITS), read_only=True)

    def __repr__(self) -> str:
        return f"Checkpoint({self.url!r})"

    @property
    def url(self) -> str:
        """The root, for use in messages."""
        return self.files.url

    def metadata(self) -> QueryMetadata | None:
        """The query's id; None if the file is missing."""
        return QueryMetadata.read(self.files)

    def sources(self) -> list[str]:
        """The sources that have a private directory: positions in the plan, or names; ascending."""
        with storage_errors(join_url(self.url, SOURCES)):
            names = [info.name for info in self.files.list(SOURCES) if info.is_dir]
        return sorted(names, key=lambda name: (not name.isdigit(), len(name), name))

    def source_log(self, source: int | str) -> SourceLog | None:
        """The private log of a source; None if it has none."""
        from epochal.checkpoint.file_log import open_source_log

        return open_source_log(self.files.at(source_log_path(source)))

    def operators(self, batch_id: int | None = None) -> dict[int, OperatorMetadata | None]:
        """The stateful operators with their metadata as of `batch_id`; None if they have none."""
        return {
            operator: read_operator(self.files, operator, batch_id)
            for operator in list_operators(self.files)
        }

    def plan_restart(self, *, async_progress: bool = False) -> RestartPlan:
        """What the query would do next if it were started now."""
        try:
            metadata = self.metadata()
        except CheckpointError as error:
            return RestartPlan(RestartAction.FAIL, reason=str(error))
        offset_ids, commit_ids = self.offsets.batch_ids(), self.commits.batch_ids()
        return plan_restart(
            offset_ids,
            commit_ids,
            _readable(self.offsets, offset_ids[-2:]),
            _readable(self.commits, commit_ids[-1:]),
            async_progress=async_progress,
            has_query_metadata=metadata is not None,
            occupied=[name for name in (OFFSETS, COMMITS, STATE) if self._occupied(name)],
        )

    def _occupied(self, name: str) -> bool:
        with storage_errors(join_url(self.url, name)):
            return any(crc_target(info.name) is None for info in self.files.list(name))


def _readable(log: MetadataLog[T], batch_ids: Iterable[int]) -> dict[int, T]:
    entries: dict[int, T] = {}
    for batch_id in batch_ids:
        with suppress(CheckpointError, StorageError):
            if (entry := log.get(batch_id)) is not None:
                entries[batch_id] = entry
    return entries
