"""Damage that users of Spark have reported in public, made again on golden checkpoints.

Each report has the text by which people search for it. Digits stand for any digits, since they
differ from report to report. `docs/troubleshooting.md` has a section for each, and
`tests/spark/test_field_reports.py` lets Spark run into each.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.planted import flipped_byte, longer_sst, lost_sst, newest_sst, other_manifest
from tests.golden.random_damage import AT_ONCE, epochal

RELEASE = "4.3.0"
HEALTHY, CANNOT = "healthy", "cannot"
WHOLE, OTHER_STATE = "whole", "whole, of another query"
"""Ends where `verify` has nothing to say: the files fit together."""


@dataclass(frozen=True, slots=True)
class Report:
    """One kind of damage, and what Spark says when it runs into it."""

    damage: Callable[[Unpacked], None]
    case: str
    error: str = ""
    """Spark's words; empty if Spark says nothing, and only the output is wrong."""
    after: str = ""
    """What follows later in the same line."""
    older: str = ""
    """The words of releases before 3.3, which are not run here."""
    ends: str = HEALTHY
    runs_as: str = ""
    """The query that Spark runs, if it is not the one that wrote the checkpoint."""

    @property
    def pattern(self) -> str:
        words = (re.sub(r"\d+", r"\\d+", re.escape(each)) for each in (self.error, self.after))
        return ".*".join(words)

    def __str__(self) -> str:
        return self.damage.__name__.replace("_", " ")


def lose(*paths: Path) -> None:
    for path in paths:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def newest(place: Unpacked) -> int:
    return max(int(path.name) for path in place.checkpoint.glob("offsets/[0-9]*"))


def rewound(place: Unpacked, to: int, *words: str) -> None:
    line = ("checkpoint", "rewind", str(place.checkpoint), "--to-batch", str(to), *words)
    status, told = epochal(*line, *AT_ONCE)
    assert status == 0, told
    shutil.rmtree(place.checkpoint / ".epochal")


def offsets_with_a_hole(place: Unpacked) -> None:
    lose(place.checkpoint / "offsets/9", place.checkpoint / "commits/9")


def the_first_entry_of_the_sinks_log_is_lost(place: Unpacked) -> None:
    """A young query, before its first compaction."""
    rewound(place, 1, "--sink", str(place.output))
    lose(place.output / "_spark_metadata/0")


def a_later_entry_of_the_sinks_log_is_lost(place: Unpacked) -> None:
    lose(place.output / "_spark_metadata/9")


def the_sinks_log_was_deleted(place: Unpacked) -> None:
    shutil.rmtree(place.output / "_spark_metadata")


def a_temporary_delta_was_never_renamed(place: Unpacked) -> None:
    delta = place.checkpoint / f"state/0/1/{newest(place) + 1}.delta"
    temporary = f".{delta.name}.3c5f9d0a-7d2b-4f3e-8a55-0c1d2e3f4a5b.TID37.tmp"
    delta.with_name(f".{delta.name}.crc").rename(delta.with_name(f".{temporary}.crc"))
    delta.rename(delta.with_name(temporary))


def an_sst_file_is_missing(place: Unpacked) -> None:
    lost_sst(place.checkpoint)


def an_sst_file_has_another_size(place: Unpacked) -> None:
    longer_sst(place.checkpoint)


def an_sst_file_has_another_unique_id(place: Unpacked) -> None:
    """The same rows from another run: the size is the same, and every checksum is right."""
    other = unpack(Golden("4.2.1", place.golden.case), place.base / "other")
    path = newest_sst(place.checkpoint)
    size = path.stat().st_size
    shutil.copyfile(newest_sst(other.checkpoint), path)
    assert path.stat().st_size == size
    path.with_name(f".{path.name}.crc").unlink()


def a_broken_manifest_in_a_zip(place: Unpacked) -> None:
    other_manifest(flipped_byte)(place.checkpoint)


def a_zip_does_not_exist(place: Unpacked) -> None:
    lose(place.checkpoint / f"state/0/0/{newest(place) + 1}.zip")


def no_metadata_file(place: Unpacked) -> None:
    lose(place.checkpoint / "metadata")


def drop_duplicates_gained_a_column(place: Unpacked) -> None:
    """Nothing is damaged: the query is another one."""


def a_commit_is_missing_that_the_sink_has(place: Unpacked) -> None:
    """The state of the batch is lost too: a file sink skips the batch, so it is never computed."""
    lose(place.checkpoint / f"commits/{newest(place)}")
    lose(place.checkpoint / f"state/0/0/{newest(place) + 1}.delta")


def only_a_commit_is_missing(place: Unpacked) -> None:
    """What every crash between the sink and the commit leaves."""
    lose(place.checkpoint / f"commits/{newest(place)}")


def state_of_another_query(place: Unpacked) -> None:
    other = unpack(Golden(RELEASE, "per_key"), place.base / "other")
    shutil.rmtree(place.checkpoint / "state")
    other.checkpoint.joinpath("state").rename(place.checkpoint / "state")


def copied_while_it_ran(place: Unpacked) -> None:
    """The copy has the logs, and half of a delta that was being written."""
    torn = place.checkpoint / f"state/0/1/{newest(place) + 1}.delta"
    torn.write_bytes(torn.read_bytes()[:30])
    torn.with_name(f".{torn.name}.crc").unlink()


def a_backup_older_than_its_sink(place: Unpacked) -> None:
    rewound(place, 5, "--no-file-sink")


def a_backup_of_state_older_than_its_sink(place: Unpacked) -> None:
    rewound(place, 7, "--no-file-sink")


NO_DELTA = (
    "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] An error occurred during loading "
    "state. Error reading delta file"
)
OTHER_KEY = (
    "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key "
    "schema."
)
NO_ENTRY = "[BATCH_METADATA_NOT_FOUND] Unable to find batch"

REPORTS = (
    Report(offsets_with_a_hole, "windowed", "batch 113258 doesn't exist"),
    Report(
        the_first_entry_of_the_sinks_log_is_lost,
        "file_sink",
        NO_ENTRY,
        older="_spark_metadata/0 doesn't exist when compacting batch 9 (compactInterval: 10)",
        ends=CANNOT,
    ),
    Report(a_later_entry_of_the_sinks_log_is_lost, "file_sink_counts", NO_ENTRY),
    Report(the_sinks_log_was_deleted, "file_sink", NO_ENTRY, ends=CANNOT),
    Report(a_temporary_delta_was_never_renamed, "windowed", NO_DELTA),
    Report(
        an_sst_file_is_missing, "rocksdb_zip", "java.io.FileNotFoundException: File", after=".sst"
    ),
    Report(
        an_sst_file_has_another_size,
        "rocksdb_zip",
        "[CANNOT_LOAD_STATE_STORE.UNEXPECTED_FILE_SIZE]",
        older="Sst file size mismatch",
    ),
    Report(
        an_sst_file_has_another_unique_id, "rocksdb_zip", "Mismatch in unique ID on table file 26"
    ),
    Report(a_broken_manifest_in_a_zip, "rocksdb_zip", "MANIFEST-000019 may be corrupted"),
    Report(
        a_zip_does_not_exist,
        "rocksdb_zip",
        "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE]",
        older="2.zip does not exist",
    ),
    Report(no_metadata_file, "windowed", "[STREAMING_CHECKPOINT_MISSING_METADATA_FILE]"),
    Report(
        drop_duplicates_gained_a_column, "dedup", OTHER_KEY, ends=WHOLE, runs_as="dedup_of_three"
    ),
    Report(a_commit_is_missing_that_the_sink_has, "file_sink_counts", NO_DELTA),
    Report(only_a_commit_is_missing, "file_sink_counts", ends=WHOLE),
    Report(state_of_another_query, "windowed", OTHER_KEY, ends=OTHER_STATE),
    Report(copied_while_it_ran, "windowed", "java.io.EOFException: Stream ended prematurely"),
    Report(a_backup_older_than_its_sink, "file_sink"),
    Report(a_backup_of_state_older_than_its_sink, "file_sink_counts"),
)
