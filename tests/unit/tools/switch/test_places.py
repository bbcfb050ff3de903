"""How far an epoch has read is told in terms that two checkpoints share."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.checkpoint.samples import SOURCE_FORMAT

from epochal.checkpoint.entries import OffsetEntry
from epochal.checkpoint.file_log import FileEntry
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.testing.files import MemoryFiles
from epochal.tools.switch.places import places_of


def checkpoint(*batches: Sequence[str]) -> MemoryFiles:
    """A checkpoint whose file source has logged these files."""
    files = MemoryFiles(prefix="ck")
    for number, names in enumerate(batches):
        entries = [FileEntry(f"file:///in/{name}", 0, number) for name in names]
        files.create(f"sources/0/{number}", SOURCE_FORMAT.serialize(entries))
    return files


def key(files: MemoryFiles, offset: str, *positions: tuple[int, int]) -> str | None:
    entry = OffsetEntry(1, (offset,))
    if positions:
        at = {
            str(number): f'{{"batch":{batch},"file":{file},"row":0,"of":{len(positions)}}}'
            for number, (batch, file) in enumerate(positions)
        }
        manifest = manifest_to_json(Manifest(7, 0, "run", (at,), (), ()))
        entry = OffsetEntry(1, (offset,), extra={MANIFEST_KEY: manifest})
    return places_of(files, {7: entry})[7].key[0]


def log_offset(batch: int) -> str:
    return f'{{"logOffset":{batch}}}'


def test_the_order_of_keys_in_an_offset_does_not_matter() -> None:
    files = MemoryFiles(prefix="ck")
    assert key(files, '{"t":{"0":5,"1":6}}') == key(files, '{"t": {"1": 6, "0": 5}}')


def test_a_file_source_is_as_far_as_the_files_that_it_has_read() -> None:
    one, other = checkpoint("a", "bc", "d"), checkpoint("ca", "b", "d")
    assert key(one, log_offset(1)) == key(other, log_offset(1))
    assert key(one, log_offset(2)) == key(other, log_offset(2))
    assert key(one, log_offset(0)) != key(other, log_offset(0))
    assert key(one, log_offset(-1)) == key(other, log_offset(-1))


def test_the_same_offset_is_another_place_if_the_files_differ() -> None:
    assert key(checkpoint("a", "b"), log_offset(1)) != key(checkpoint("a", "c"), log_offset(1))


def test_an_epoch_that_ended_inside_a_batch_has_read_more_than_its_offset_says() -> None:
    files = checkpoint("a", "bc", "d")
    between = key(files, log_offset(0), (1, 1), (1, 0))
    assert between != key(files, log_offset(0))
    assert between == key(checkpoint("a", "bc", "e"), log_offset(0), (1, 1), (1, 0))
    assert between != key(checkpoint("a", "cb", "d"), log_offset(0), (1, 1), (1, 0))
    assert key(files, log_offset(0), (1, 0), (1, 0)) == key(files, log_offset(0))
