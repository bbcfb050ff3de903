"""Prepared state is published under Spark's names; what nobody decided goes, in its time."""

from __future__ import annotations

import google_crc32c
import pytest

from epochal.epoch.messages import PreparedState
from epochal.epoch.publish_state import StateFiles
from epochal.errors import StateLoadError
from epochal.testing.files import MemoryFiles


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
    state.close()
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
    state.close()


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


def test_a_checkpoint_without_state_has_nothing_to_discard() -> None:
    assert StateFiles(MemoryFiles()).discard_before(3) == []
