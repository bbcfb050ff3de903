"""A task with state on disk needs no memory for each key."""

from __future__ import annotations

from pathlib import Path

from benchmarks.big_state import in_a_process, write_snapshots

KEYS = 2_000_000
SLACK_MEBIBYTES = 160
"""For the rows of a snapshot that are read at once, and what the allocator does not give back."""


def test_two_million_keys_fit_into_the_memory_that_the_option_allows(tmp_path: Path) -> None:
    # In dictionaries they take 800 MiB.
    write_snapshots(tmp_path, KEYS)
    found = in_a_process(str(tmp_path), "64m", KEYS, rate=1000, seconds=5)
    assert found["peak_mebibytes"] <= found["peak_mebibytes_without_state"] + 64 + SLACK_MEBIBYTES
    assert found["disk_mebibytes"] > 10
