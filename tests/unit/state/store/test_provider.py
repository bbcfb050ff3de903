"""A provider's promises: what is cached, which files stay, what damage does, who wins a race."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.state.stores import (
    content,
    content_at,
    files_in,
    provider,
    put,
    temp_files_in,
    update_to,
)

from epochal.errors import (
    OptionError,
    StateError,
    StateFormatError,
    StateLoadError,
    StateUsageError,
)
from epochal.files.local import LocalFiles
from epochal.state.rows.types import StringType, StructField, StructType
from epochal.state.store.store import SNAPSHOTS_REPAIRED
from epochal.testing.files import FaultyFiles

pytestmark = pytest.mark.usefixtures("rows_in")


def test_an_older_version_does_not_push_out_newer_ones(tmp_path: Path) -> None:
    states = provider(tmp_path, in_memory=2)
    update_to(states, 0, 3)
    assert content_at(states, 1) == {("a", 0): 1}
    assert states.cached_versions() == [3, 2]


def test_with_one_version_in_memory_a_version_run_again_is_the_one_kept(tmp_path: Path) -> None:
    states = provider(tmp_path, in_memory=1)
    update_to(states, 0, 2)
    assert states.cached_versions() == [2]
    assert content_at(states, 1) == {("a", 0): 1}
    assert states.cached_versions() == [2]
    put(states, 1, ("a", 0, -2))
    assert states.cached_versions() == [2]
    assert content_at(states, 2) == {("a", 0): -2}


def test_snapshots_and_cleanup_leave_exactly_the_files_spark_leaves(tmp_path: Path) -> None:
    states = provider(tmp_path, min_deltas=5, retain=2)
    snapshots = []
    for version in range(21):
        update_to(states, version, version + 1)
        states.do_snapshot()
        if f"{version + 1}.snapshot" in files_in(tmp_path):
            snapshots.append(version + 1)
        states.do_cleanup()
    assert snapshots == [6, 12, 18]
    assert files_in(tmp_path) == {"18.snapshot", "18.delta", "19.delta", "20.delta", "21.delta"}


@pytest.mark.parametrize("name", ["2.delta", "6.snapshot"])
def test_an_emptied_file_is_refused_and_named(tmp_path: Path, name: str) -> None:
    states = provider(tmp_path, min_deltas=5, retain=100)
    update_to(states, 0, 6)
    states.do_maintenance()
    (tmp_path / name).write_bytes(b"")
    version = int(name.partition(".")[0])
    with pytest.raises(StateError) as refused:
        provider(tmp_path).get_store(version)
    assert name in str(refused.value)
    assert refused.value.condition.startswith("CANNOT_LOAD_STATE_STORE.")


def rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    from epochal.state.files.codecs import compress, decompress

    raw = bytearray(decompress(path.read_bytes(), "lz4"))
    change(raw)
    path.write_bytes(compress(bytes(raw), "lz4"))


def test_a_damaged_key_is_refused_by_its_shape(tmp_path: Path) -> None:
    update_to(provider(tmp_path), 0, 1)

    def flip(raw: bytearray) -> None:
        raw[4 + 8 + 4] ^= 0xFF  # the offset of the key's string

    rewrite(tmp_path / "1.delta", flip)
    with pytest.raises(StateFormatError) as refused:
        provider(tmp_path).get_store(1)
    assert refused.value.condition == "CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE"


OTHER = StructType((StructField("value", StringType()),))


def test_rows_of_another_schema_are_refused_wherever_they_are(tmp_path: Path) -> None:
    put(provider(tmp_path), 0, ("a", 0, 1))
    store = provider(tmp_path, value=OTHER, validate=False).get_store(1)
    store.put(("z", 0), ("text",))
    store.commit()
    with pytest.raises(StateFormatError) as refused:
        provider(tmp_path).get_store(2)
    assert "2.delta" in str(refused.value)
    assert refused.value.condition == "CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE"


def test_validation_can_be_switched_off(tmp_path: Path) -> None:
    put(provider(tmp_path), 0, ("a", 0, 1))
    assert len(provider(tmp_path, value=OTHER, validate=False).get_store(1)) == 1
    with pytest.raises(StateFormatError):
        provider(tmp_path, value=OTHER).get_store(1)


@pytest.mark.parametrize("name", ["1.delta", "1.snapshot"])
def test_a_record_that_breaks_its_checksum_is_refused(tmp_path: Path, name: str) -> None:
    first = provider(tmp_path, row_checksums=True)
    store = first.get_store(0, force_snapshot_on_commit=name == "1.snapshot")
    store.put(("a", 0), (1,))
    store.put(("b", 0), (2,))
    store.commit()

    def flip(raw: bytearray) -> None:
        raw[-4 - 8] ^= 1  # the value of the last record

    rewrite(tmp_path / name, flip)
    with pytest.raises(StateFormatError) as refused:
        provider(tmp_path, row_checksums=True).get_store(1)
    assert refused.value.condition == "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
    assert name in str(refused.value)


def snapshots_at(tmp_path: Path, *versions: int) -> None:
    """Versions up to the last, with a forced snapshot at each of those given."""
    states = provider(tmp_path, retain=100)
    for version in range(max(versions)):
        store = states.get_store(version, force_snapshot_on_commit=version + 1 in versions)
        store.put(("a", 0), (version + 1,))
        store.commit()


def test_a_bad_snapshot_stops_a_load_when_repair_is_off(tmp_path: Path) -> None:
    snapshots_at(tmp_path, 2, 4)
    (tmp_path / "4.snapshot").write_bytes(b"")
    with pytest.raises(StateError, match=r"4\.snapshot"):
        provider(tmp_path, repair=False).get_store(4)


def test_a_bad_snapshot_is_passed_over_when_repair_is_on(tmp_path: Path) -> None:
    snapshots_at(tmp_path, 2, 4, 6)
    (tmp_path / "4.snapshot").write_bytes(b"")
    (tmp_path / "1.delta").unlink()
    states = provider(tmp_path, repair=True, max_replay=6)
    store = states.get_store(4)
    assert content(store) == {("a", 0): 4}
    assert store.metrics.custom[SNAPSHOTS_REPAIRED] == 1
    assert states.get_store(6).metrics.custom[SNAPSHOTS_REPAIRED] == 0


def test_repair_that_may_not_replay_enough_names_what_it_tried(tmp_path: Path) -> None:
    snapshots_at(tmp_path, 2, 4, 5)
    for name in ("4.snapshot", "5.snapshot"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(StateLoadError) as refused:
        provider(tmp_path, repair=True, max_replay=2).get_store(5)
    assert refused.value.condition == "CANNOT_LOAD_STATE_STORE.AUTO_SNAPSHOT_REPAIR_FAILED"
    assert "tried: 4 (of 4, 2, 0)" in str(refused.value)


def test_a_bad_delta_is_never_passed_over(tmp_path: Path) -> None:
    snapshots_at(tmp_path, 2)
    update_to(provider(tmp_path, retain=100), 2, 4)
    (tmp_path / "3.delta").write_bytes((tmp_path / "3.delta").read_bytes()[:-1])
    with pytest.raises(StateError, match=r"3\.delta"):
        provider(tmp_path, repair=True).get_store(4)


def test_a_snapshot_written_while_its_version_was_replaced_is_taken_back(tmp_path: Path) -> None:
    racing: list[Callable[[], object]] = []

    def race(operation: str, path: str) -> None:
        if operation == "replace" and path.endswith(".snapshot") and racing:
            racing.pop()()

    states = provider(
        FaultyFiles(LocalFiles(tmp_path, durable=False), race), min_deltas=1, retain=100
    )
    update_to(states, 0, 3)
    other = provider(tmp_path)
    racing.append(lambda: put(other, 2, ("a", 0, 3), ("other", 0, 1)))
    states.do_snapshot()
    assert "3.snapshot" not in files_in(tmp_path)
    assert content_at(provider(tmp_path), 3) == {("a", 0): 3, ("other", 0): 1}


def test_a_closed_provider_gives_out_no_store_but_lets_open_ones_finish(tmp_path: Path) -> None:
    states = provider(tmp_path)
    update_to(states, 0, 2)
    reader, writer = states.get_read_store(2).iterator(), states.get_store(2)
    states.close()
    assert list(reader) == [(("a", 0), (2,))]
    writer.put(("b", 0), (1,))
    assert writer.commit() == 3
    assert content_at(provider(tmp_path), 3) == {("a", 0): 2, ("b", 0): 1}
    with pytest.raises(StateUsageError):
        states.get_store(3)
    assert states.cached_versions() == []
    states.do_maintenance()


def test_maintenance_and_commits_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    states = provider(tmp_path, min_deltas=2, retain=3)
    stop = threading.Event()
    failed: list[Exception] = []

    def maintain() -> None:
        while not stop.is_set():
            try:
                states.do_maintenance()
            except (StateError, OSError) as error:
                failed.append(error)

    thread = threading.Thread(target=maintain)
    thread.start()
    for version in range(60):
        put(states, version, ("a", 0, version + 1), ("k", version, version))
    stop.set()
    thread.join()
    assert failed == []
    expected = {("k", version): version for version in range(60)} | {("a", 0): 60}
    assert content_at(provider(tmp_path), 60) == expected


def test_a_prepared_version_is_seen_by_nobody_who_asks_by_number(tmp_path: Path) -> None:
    states = provider(tmp_path)
    update_to(states, 0, 1)
    store = states.get_store(1)
    store.put(("a", 0), (2,))
    prepared = store.commit_prepared("7")
    assert (prepared.version, prepared.name) == (2, "2.delta.prepared-7")
    assert store.has_committed is True
    assert temp_files_in(tmp_path) == []
    assert states.latest_version() == 1
    for asked in (states, provider(tmp_path)):
        with pytest.raises(StateLoadError):
            asked.get_store(2)


def test_a_prepared_file_that_was_changed_is_not_published(tmp_path: Path) -> None:
    states = provider(tmp_path)
    update_to(states, 0, 1)
    store = states.get_store(1)
    store.put(("a", 0), (2,))
    prepared = store.commit_prepared("1")
    (tmp_path / prepared.name).write_bytes(b"other")
    with pytest.raises(StateFormatError):
        states.publish(prepared)
    assert "2.delta" not in files_in(tmp_path)


def test_attempts_and_versions_are_checked(tmp_path: Path) -> None:
    states = provider(tmp_path)
    update_to(states, 0, 1)
    store = states.get_store(1)
    prepared = store.commit_prepared("1")
    with pytest.raises(OptionError):
        states.get_store(3, from_prepared=prepared)
    with pytest.raises(StateError):
        states.get_store(1).commit_prepared("../1")
