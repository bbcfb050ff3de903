"""Logs that released Sparks wrote: read and written again, each file is the same bytes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Unpacked, cases, unpack

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, QueryMetadata
from epochal.checkpoint.file_log import (
    RATE_FORMAT,
    FileEntry,
    FileLogFormat,
    FileSinkLog,
    FileSourceLog,
    RateLog,
    SinkFileStatus,
    open_source_log,
)
from epochal.checkpoint.layout import StateFile, parse_state_file
from epochal.checkpoint.metadata_log import LogFormat
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT
from epochal.files.local import LocalFiles
from epochal.testing.files import MemoryFiles

ARCHIVES = cases()

FORMATS: list[tuple[str, LogFormat[Any]]] = [
    ("checkpoint/offsets/*", OFFSET_FORMAT),
    ("checkpoint/commits/*", COMMIT_FORMAT),
    ("checkpoint/sources/*/*", FileLogFormat(FileEntry)),
    ("checkpoint/state/*/_metadata/metadata", OPERATOR_FORMAT),
    ("checkpoint/state/*/_metadata/v2/*", OPERATOR_FORMAT),
    ("output/_spark_metadata/*", FileLogFormat(SinkFileStatus)),
]


@pytest.fixture(scope="module", params=ARCHIVES, ids=str)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return unpack(request.param, tmp_path_factory.mktemp("golden"))


def is_rate_log(directory: Path) -> bool:
    return isinstance(open_source_log(LocalFiles(directory)), RateLog)


def log_files(base: Path, pattern: str) -> Iterator[Path]:
    return (path for path in sorted(base.glob(pattern)) if not path.name.startswith("."))


def test_every_log_file_read_and_written_again_is_the_same_bytes(place: Unpacked) -> None:
    changed, seen = [], set()
    for pattern, log_format in FORMATS:
        for path in log_files(place.base, pattern):
            seen.add(pattern)
            data = path.read_bytes()
            fitting = RATE_FORMAT if is_rate_log(path.parent) else log_format
            if fitting.serialize(fitting.deserialize(data, str(path))) != data:
                changed.append(str(path.relative_to(place.base)))
    assert changed == []
    assert {"checkpoint/offsets/*", "checkpoint/commits/*"} <= seen


def test_the_query_id_read_and_written_again_is_the_same_bytes(place: Unpacked) -> None:
    data = (place.checkpoint / "metadata").read_bytes()
    metadata = QueryMetadata.deserialize(data)
    assert metadata.id == place.facts["query_id"]
    assert metadata.serialize() == data


def main_name(file: StateFile) -> str:
    """The name of a state file, or of the one whose checksum it is."""
    unique = "" if file.unique_id is None else f"_{file.unique_id}"
    return f"{file.version}{unique}.{file.kind}"


def test_every_state_file_is_known_by_its_name(place: Unpacked) -> None:
    strangers = [
        str(path.relative_to(place.base))
        for kind in ("delta", "snapshot", "changelog", "zip")
        for path in place.checkpoint.glob(f"state/**/*.{kind}*")
        if (found := parse_state_file(path.name)) is None
        or main_name(found) != path.name.lstrip(".").removesuffix(".crc").removesuffix(".crc")
        or found.is_checksum != path.name.endswith(".crc")
    ]
    assert strangers == []


def test_file_logs_written_anew_batch_by_batch_are_the_same_files(place: Unpacked) -> None:
    """Names, intervals and contents of compactions included.

    A log whose beginning is cleaned up cannot be written anew from its beginning.
    """
    for directory in sorted(place.checkpoint.glob("sources/*")):
        if is_rate_log(directory):
            continue
        log = FileSourceLog(str(directory), read_only=True)
        if min(log.batch_ids(), default=0) > 0:
            continue
        again = FileSourceLog(MemoryFiles(), compact_interval=log.compact_interval, deletion=False)
        for batch_id, own in log.get_range():
            again.add(batch_id, own)
        assert_same_files(directory, again)
    sink = place.output / "_spark_metadata"
    if sink.is_dir():
        written = FileSinkLog(str(sink), read_only=True)
        if min(written.batch_ids(), default=0) > 0:
            return
        rewritten = FileSinkLog(
            MemoryFiles(), compact_interval=written.compact_interval, deletion=False
        )
        known: set[SinkFileStatus] = set()
        for batch_id in written.batch_ids():
            entries = written.get(batch_id) or ()
            rewritten.add(batch_id, [entry for entry in entries if entry not in known])
            known.update(entries)
        assert_same_files(sink, rewritten)


def assert_same_files(directory: Path, again: FileSourceLog | FileSinkLog) -> None:
    on_disk = {path.name: path.read_bytes() for path in log_files(directory, "*")}
    rewritten = {info.name: again.files.read(info.name) for _, info in again.batch_files()}
    assert {name: rewritten.get(name) for name in on_disk} == on_disk
