"""More than 20,000 damaged files: none crashes a tool, none is overlooked that could be seen.

What could be seen, and is therefore demanded:

* A file with a hidden checksum that was changed in any way is named in a finding.
* Without hidden checksums, a state file whose compression carries checksums (lz4) is named, unless
  it still holds the very same records (bytes after the end mark mean nothing, to Spark neither) or
  was exchanged for another whole file.
* Any other file is named, or still parses. A digit changed in an offset is another offset, and no
  rule can tell.

`show` is held to the first half of the title: whatever it meets, it answers.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.fuzz.mutations import Tree, mutate, small_tree, visible, without_checksums
from tests.golden.library import Golden

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, QueryMetadata
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT
from epochal.errors import EpochalError
from epochal.files import UNBOUNDED
from epochal.state.files.codecs import decompress
from epochal.state.files.rocksdb_changelog import parse_changelog
from epochal.state.files.schema_file import parse_schema_file
from epochal.testing.files import MemoryFiles
from epochal.tools.inspect.show import inspect
from epochal.tools.inspect.source_listing import SOURCE_FORMAT
from epochal.tools.verify.check_content import scan_small, unpack
from epochal.tools.verify.findings import Depth
from epochal.tools.verify.verify import verify

ROUNDS = 500


@dataclass(frozen=True, slots=True)
class Subject:
    """A small checkpoint and how often to damage it, in units of ROUNDS."""

    case: str
    keep: Callable[[str], bool]
    weight: int

    def __str__(self) -> str:
        return self.case


def newest_of(*, versions: range) -> Callable[[str], bool]:
    """Keep the batches that made these versions, and of state the first partition's."""
    batches = {str(version - 1) for version in versions}

    def keep(path: str) -> bool:
        match path.split("/"):
            case ["offsets" | "commits", name]:
                return name in batches
            case ["sources", _, name]:
                return name in batches
            case ["state", _, partition, *_, name] if partition.isdigit():
                version = name.partition(".")[0].partition("_")[0]
                return partition == "0" and (not version.isdigit() or int(version) in versions)
        return True

    return keep


def everything(path: str) -> bool:
    del path
    return True


SUBJECTS = (
    Subject("windowed", newest_of(versions=range(8, 10)), 14),
    Subject("dedup", newest_of(versions=range(8, 10)), 8),
    Subject("several_sources", newest_of(versions=range(8, 10)), 6),
    Subject("file_sink", everything, 4),
    Subject("rocksdb_changelog", newest_of(versions=range(9, 11)), 6),
    Subject("rocksdb_v2", newest_of(versions=range(9, 11)), 4),
)

CHUNKS = [(subject, chunk) for subject in SUBJECTS for chunk in range(subject.weight)]


def test_the_rounds_add_up() -> None:
    assert len(CHUNKS) * ROUNDS >= 20_000


@pytest.fixture(scope="module")
def trees() -> dict[str, Tree]:
    return {each.case: small_tree(Golden("4.3.0", each.case), each.keep) for each in SUBJECTS}


@pytest.mark.parametrize(("subject", "chunk"), CHUNKS, ids=str)
def test_no_damage_crashes_or_goes_unseen(
    subject: Subject, chunk: int, trees: dict[str, Tree]
) -> None:
    draw = random.Random(f"{subject.case}/{chunk}")
    tree = trees[subject.case]
    if chunk % 2:
        tree = without_checksums(tree)
    paths = sorted(path for path in tree if "/SSTs/" not in path)
    before = set(verify(MemoryFiles(tree), depth=Depth.DEEP).findings)
    for _ in range(ROUNDS):
        path = draw.choice(paths)
        others = [tree[draw.choice(paths)][0] for _ in range(2)]
        changed = mutate(draw, tree[path][0], others)
        damaged = tree | {path: (changed, 0)}
        report = verify(MemoryFiles(damaged), depth=Depth.DEEP)
        if draw.random() < 0.3:
            inspect(MemoryFiles(damaged))
        named = {finding.path for finding in report.findings if finding not in before}
        if path not in named:
            exchanged = changed in others
            assert is_beyond_rules(path, tree, changed, exchanged), (path, changed)


def is_beyond_rules(path: str, tree: Tree, changed: bytes, exchanged: bool) -> bool:
    """Whether nothing that is on disk could have told that this file was changed."""
    if visible(path) != path:
        return True  # a checksum was damaged, not a file: at most that is worth a warning
    folder, slash, name = path.rpartition("/")
    if f"{folder}{slash}.{name}.crc" in tree:
        return False
    original = tree[path][0]
    try:
        match name.rpartition(".")[2]:
            case "delta" | "snapshot" as kind:
                return _records(changed, kind) == _records(original, kind) or exchanged
            case "changelog":
                return _changes(changed) == _changes(original) or exchanged
            case "crc" | "zip":
                return True
        _parse(path, changed)
    except EpochalError:
        return False
    return True


def _records(data: bytes, kind: str) -> object:
    raw = unpack(data, "lz4", "", UNBOUNDED)
    return scan_small(raw, is_snapshot=kind == "snapshot", row_checksums=False, source="")


def _changes(data: bytes) -> object:
    return parse_changelog(decompress(data, "lz4"), "")


def _parse(path: str, data: bytes) -> object:
    if path == "metadata":
        return QueryMetadata.deserialize(data)
    if path.endswith("/schema"):
        return parse_schema_file(data)
    if "_metadata" in path:
        return OPERATOR_FORMAT.deserialize(data, path)
    match path.partition("/")[0]:
        case "offsets":
            return OFFSET_FORMAT.deserialize(data, path)
        case "commits":
            return COMMIT_FORMAT.deserialize(data, path)
    return SOURCE_FORMAT.deserialize(data, path)
