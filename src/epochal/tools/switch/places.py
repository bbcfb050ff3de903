"""Reads how far each epoch of a query has read, in terms that two checkpoints share.

An offset of Kafka means the same in every checkpoint. The offset of a file source does not: it is a
batch of the source's own log, and two queries that find files at different times put them into
different batches. So it is replaced by the files that were read.

Note: a continuous query may end an epoch inside a batch of the log, and its offset is then the last
batch that was read completely. Its exact positions are in the manifest.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from epochal.checkpoint.entries import OffsetEntry
from epochal.checkpoint.file_log import FileEntry, FileSourceLog, open_source_log
from epochal.checkpoint.layout import OFFSETS, SOURCES, source_log_path
from epochal.epoch.manifest import manifest_of
from epochal.files import Files, join_url
from epochal.tools.edit.offset_targets import is_file_offset
from epochal.tools.switch.boundaries import ReadPosition


def places_of(files: Files, entries: Mapping[int, OffsetEntry]) -> dict[int, ReadPosition]:
    names = [info.name for info in files.list(SOURCES) if info.is_dir and not info.hidden]
    opened = {name: open_source_log(files.at(source_log_path(name))) for name in names}
    logs = {
        name: _FileLog(log.all_files())
        for name, log in opened.items()
        if isinstance(log, FileSourceLog)
    }
    by_epoch = {}
    for epoch, entry in entries.items():
        manifest = manifest_of(entry, join_url(files.url, f"{OFFSETS}/{epoch}"), epoch)
        positions: dict[int, Mapping[str, str]] = {}
        if manifest is not None and len(manifest.positions) == len(entry.by_source):
            positions = dict(enumerate(manifest.positions))
        key = tuple(
            _key(offset, logs.get(source), positions.get(number, {}))
            for number, (source, offset) in enumerate(entry.by_source.items())
        )
        by_epoch[epoch] = ReadPosition(tuple(entry.by_source.values()), entry.watermark_ms, key)
    return by_epoch


class _FileLog:
    """The files of a source's log, in order."""

    def __init__(self, entries: Sequence[FileEntry]) -> None:
        self._entries = sorted(entries, key=lambda entry: entry.batch_id)
        self._batches = [entry.batch_id for entry in self._entries]
        hashes = (_number(entry.path) for entry in self._entries)
        self._sums = [0, *accumulate(hashes)]

    def read_up_to(self, batch: int) -> str:
        """Identifies the files up to a batch, whatever their order and their batches are."""
        count = bisect_right(self._batches, batch)
        return f"{count} files {self._sums[count] % 2**64:x}"

    def listed_up_to(self, batch: int) -> str:
        """Identifies the files up to a batch, with their order and their batches."""
        listed = self._entries[: bisect_right(self._batches, batch)]
        text = json.dumps([(entry.batch_id, entry.path) for entry in listed])
        return f"{len(listed)} files in order {_number(text) % 2**64:x}"


def _key(offset: str | None, log: _FileLog | None, positions: Mapping[str, str]) -> str | None:
    if offset is None:
        return None
    if log is None or not is_file_offset(offset):
        try:  # the same text for the same JSON, whatever the order of its keys is
            return json.dumps(json.loads(offset), sort_keys=True, separators=(",", ":"))
        except (ValueError, RecursionError):
            return offset
    batch = int(json.loads(offset)["logOffset"])
    exact = [json.loads(text) for text in positions.values()]
    if all((at["batch"], at["file"], at["row"]) == (batch + 1, 0, 0) for at in exact):
        return log.read_up_to(batch)
    highest = max(int(at["batch"]) for at in exact)
    return f"{log.listed_up_to(highest)} {json.dumps(sorted(positions.items()))}"


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
