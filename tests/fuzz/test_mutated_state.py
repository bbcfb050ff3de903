"""Damaged state files: reading gives the true rows or an error that names a file, nothing else.

Where the codec has no checksums (zstd as Spark writes it), a flipped bit can be another, equally
good value, and no reader can tell; there only the second half of the promise is held.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
from tests.fuzz.mutations import Tree, mutate, small_tree, without_checksums
from tests.golden.library import Golden

from epochal.errors import EpochalError
from epochal.testing.files import MemoryFiles
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.read import open_batch, open_reader

ROUNDS = 150
SUBJECTS = (
    "windowed",
    "row_checksum",
    "codec_zstd",
    "join_inner",
    "rocksdb_changelog",
    "rocksdb_v2",
)
SPARKS = "rocksdb_zip"
UNCHECKED = {"codec_zstd"}
STORES = {"join_inner": "left-keyWithIndexToValue"}


@cache
def subject(case: str) -> Tree:
    return without_checksums(small_tree(Golden("4.3.0", case), lambda path: True))


def read(tree: Tree, case: str) -> Counter[str]:
    reader = open_reader(open_batch(MemoryFiles(tree)), 0, STORES.get(case, "default"))
    return Counter(str(row) for rows in json_batches(reader) for row in rows)


def attempt(tree: Tree, case: str) -> Counter[str] | EpochalError:
    try:
        return read(tree, case)
    except EpochalError as error:
        return error


def needed(tree: Tree, case: str) -> list[str]:
    """The state files that the newest batch is read from: damaging one must be noticed."""
    store = STORES.get(case, "")
    return sorted(
        path
        for path in tree
        if path.startswith("state/0/") and store in path and "_meta" not in path
    )


@pytest.mark.parametrize("case", [*SUBJECTS, SPARKS])
@pytest.mark.parametrize("seed", range(2))
def test_damage_gives_the_true_rows_or_an_error_that_names_a_file(case: str, seed: int) -> None:
    draw = random.Random(f"{case}/{seed}")
    tree = subject(case)
    truth = read(tree, case)
    paths = needed(tree, case)
    others = [tree[path][0] for path in paths]
    errors = 0
    for _ in range(ROUNDS if case != SPARKS else ROUNDS // 5):
        path = draw.choice(paths)
        damaged = {**tree, path: (mutate(draw, tree[path][0], others), 0)}
        if draw.random() < 0.1:
            del damaged[path]
        outcome = attempt(damaged, case)
        if isinstance(outcome, EpochalError):
            assert "state/0/" in str(outcome), (path, str(outcome))
            errors += 1
        elif case not in UNCHECKED and damaged.get(path, (b"", 0))[0] not in others:
            assert outcome == truth, path
    assert errors > 0
