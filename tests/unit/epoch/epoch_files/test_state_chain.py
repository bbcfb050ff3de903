"""The bytes of epoch files; which a decision names, which are garbage, how they are published."""

from __future__ import annotations

import google_crc32c
import pytest

from epochal.checkpoint.layout import EPOCHS
from epochal.epoch.epoch_files.chain_files import StateFiles, read_chain, write_epoch
from epochal.epoch.epoch_files.epoch_file import (
    MAGIC,
    Header,
    StoreFileEntry,
    checksum_of,
    decode_epoch,
    encode_epoch,
    file_name,
    parse_file_name,
)
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain, extended
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, MalformedFileError, StateLoadError
from epochal.testing.files import MemoryFiles


def written(files: MemoryFiles, attempt: int, epochs: range, tasks: int = 2) -> tuple[int, ...]:
    """Write the files of an attempt; return the checksums of the last ones."""
    last = [-1] * tasks
    for epoch in epochs:
        for task in range(tasks):
            data = encode_epoch(Header(epoch, attempt, task, tasks, last[task], ()), [])
            last[task] = write_epoch(files, file_name(epoch, task, attempt), data)
    return tuple(last)


def test_a_chain_grows_with_its_attempt_and_shrinks_with_publications() -> None:
    before = (EpochRun(2, 4, 1, (10, 11)), EpochRun(5, 6, 2, (20,)))

    def after(epoch: int, published: int) -> StateChain:
        return extended(before, EpochRun(7, epoch, 3, (30,)), published)

    assert after(7, 2) == StateChain(2, (*before, EpochRun(7, 7, 3, (30,))))
    assert after(9, 4).runs == (EpochRun(4, 4, 1, (10, 11)), before[1], EpochRun(7, 9, 3, (30,)))
    assert after(9, 7).runs == (EpochRun(7, 9, 3, (30,)),)
    assert after(9, 8) == StateChain(8, (EpochRun(8, 9, 3, (30,)),))
    assert [after(9, at).is_gapless for at in (2, 5, 9)] == [True] * 3
    assert after(9, 2).version == 10


def test_the_files_of_several_attempts_are_read_in_order() -> None:
    files = MemoryFiles()
    first, second = written(files, 1, range(3)), written(files, 2, range(3, 5), tasks=1)
    chain = StateChain(1, (EpochRun(1, 2, 1, first), EpochRun(3, 4, 2, second)))
    found = [(each.header.epoch, each.header.task) for each in read_chain(files, chain)]
    assert found == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (4, 0)]
    mine = read_chain(files, chain, task=1, tasks=2)
    assert [(each.header.epoch, each.header.task) for each in mine] == [
        (1, 1),
        (2, 1),
        (3, 0),
        (4, 0),
    ]


def test_a_missing_file_and_a_gap_are_refused() -> None:
    files = MemoryFiles()
    last = written(files, 1, range(3))
    with pytest.raises(StateLoadError, match="which has a gap"):
        read_chain(files, StateChain(0, (EpochRun(1, 2, 1, last),)))
    files.delete("1-t0-a1")
    with pytest.raises(StateLoadError, match="1-t0-a1: the epoch file does not exist"):
        read_chain(files, StateChain(0, (EpochRun(0, 2, 1, last),)))


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_file_with_other_content_is_refused_wherever_it_is_in_the_chain(epoch: int) -> None:
    files = MemoryFiles()
    last = written(files, 1, range(3))
    files.replace(f"{epoch}-t1-a1", encode_epoch(Header(epoch, 1, 1, 2, 7, ()), []))
    with pytest.raises(StateLoadError, match=f"{epoch}-t1-a1: its checksum is"):
        read_chain(files, StateChain(0, (EpochRun(0, 2, 1, last),)))


def test_a_file_is_written_once() -> None:
    files = MemoryFiles()
    write_epoch(files, "0-t0-a1", b"one")
    with pytest.raises(EpochError, match="0-t0-a1 exists already"):
        write_epoch(files, "0-t0-a1", b"two")


def test_garbage_is_what_no_retained_decision_can_name() -> None:
    files = MemoryFiles()
    epochs = files.at(EPOCHS)
    written(epochs, 1, range(6), tasks=1)
    written(epochs, 3, range(4, 6), tasks=1)
    epochs.create("readme", b"not ours")
    state = StateFiles(files)
    # Attempt 3 started at epoch 4: what attempt 1 wrote before may be decided, the rest cannot be.
    assert state.discard_before(3, 4) == [f"{EPOCHS}/4-t0-a1", f"{EPOCHS}/5-t0-a1"]
    assert state.delete_before(2) == ["0-t0-a1", "1-t0-a1"]
    names = sorted(info.name for info in epochs.list())
    assert names == ["2-t0-a1", "3-t0-a1", "4-t0-a3", "5-t0-a3", "readme"]


def prepared(files: MemoryFiles, partition: int, version: int, attempt: int) -> PreparedState:
    name = f"{version}.delta.prepared-a{attempt}"
    data = f"{partition}/{version}/{attempt}".encode()
    files.replace(f"state/0/{partition}/left/{name}", data)
    return PreparedState(0, partition, "left", version, name, google_crc32c.value(data))


def content(files: MemoryFiles) -> dict[str, bytes]:
    return {path: files.read(path) for path, _ in files.walk()}


@pytest.mark.parametrize("publishers", [1, 8])
def test_all_versions_are_published_and_may_be_published_again(publishers: int) -> None:
    files = MemoryFiles()
    states = [prepared(files, partition, 5, 2) for partition in range(20)]
    state = StateFiles(files, publishers=publishers)
    state.publish(states)
    state.publish(states)
    assert content(files) == {
        f"state/0/{partition}/left/5.delta": f"{partition}/5/2".encode() for partition in range(20)
    }


def test_state_that_is_not_there_is_an_error_not_a_gap() -> None:
    files = MemoryFiles()
    states = [prepared(files, partition, 5, 2) for partition in range(4)]
    files.delete("state/0/2/left/5.delta.prepared-a2")
    state = StateFiles(files)
    with pytest.raises(StateLoadError, match="state/0/2/left"):
        state.publish(states)


def test_what_earlier_attempts_prepared_is_discarded_and_nothing_else() -> None:
    files = MemoryFiles()
    for attempt in (1, 2, 10):
        prepared(files, 0, 5, attempt)
    for name in ("5.delta", "6.delta.prepared-of-another", "5.snapshot"):
        files.replace(f"state/0/0/{name}", b"")
    assert StateFiles(files).discard_before(10) == [
        "state/0/0/left/5.delta.prepared-a1",
        "state/0/0/left/5.delta.prepared-a2",
    ]
    assert sorted(content(files)) == [
        "state/0/0/5.delta",
        "state/0/0/5.snapshot",
        "state/0/0/6.delta.prepared-of-another",
        "state/0/0/left/5.delta.prepared-a10",
    ]


STORES = (
    StoreFileEntry(0, 3, "default", "8.delta", 5),
    StoreFileEntry(1, 3, "left-keyToNumValues", "8_id.changelog", 0),
    StoreFileEntry(1, 4, "default", "8.zip", 2),
)
HEADER = Header(7, 2, 1, 4, 99, STORES)
DATA = encode_epoch(HEADER, [b"delta", b"", b"PK"])


def test_a_file_contains_the_file_of_each_store() -> None:
    found = decode_epoch(DATA, "here")
    assert (found.header, found.checksum) == (HEADER, checksum_of(DATA))
    assert [(each.key, each.name, data) for each, data in found.items()] == [
        ((0, 3, "default"), "8.delta", b"delta"),
        ((1, 3, "left-keyToNumValues"), "8_id.changelog", b""),
        ((1, 4, "default"), "8.zip", b"PK"),
    ]


def test_names_are_read_as_they_are_written() -> None:
    assert parse_file_name(file_name(7, 1, 2)) == (7, 1, 2)
    for other in ("7-t1", "7-t1-a2.tmp", "x-t1-a2", ".7-t1-a2.crc"):
        assert parse_file_name(other) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an epoch file"),
        (b"something else entirely, and long", "not an epoch file"),
        (MAGIC + b"\0\0\0\3abc", "header cannot be read"),
        (DATA[:-1], "6 bytes of content instead of 7"),
        (DATA + b"more", "11 bytes of content instead of 7"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedFileError, match=reason):
        decode_epoch(data, "here")
