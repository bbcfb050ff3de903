from __future__ import annotations

from pathlib import Path

import pytest

from epochal.dashboard import board as module
from epochal.dashboard.board import find_checkpoints
from epochal.files.local import LocalFiles


def checkpoint(path: Path) -> str:
    (path / "offsets").mkdir(parents=True)
    (path / "metadata").write_text("{}")
    return str(path)


def found(path: Path) -> list[str]:
    return find_checkpoints(LocalFiles(path))


def test_all_checkpoints_below_a_directory_are_found_in_order(tmp_path: Path) -> None:
    made = [checkpoint(tmp_path / name) for name in ("a", "b/c/checkpoint", "b/checkpoint")]
    checkpoint(tmp_path / "much" / "too" / "far" / "below")
    assert found(tmp_path) == made


def test_tables_and_output_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    (tmp_path / "iceberg" / "data" / "day=1").mkdir(parents=True)
    checkpoint(tmp_path / "delta" / "_delta_log")
    checkpoint(tmp_path / "parquet" / "day=2")
    checkpoint(tmp_path / ".hidden")
    assert found(tmp_path) == [str(tmp_path)], "nothing is found: the page says so"


def test_a_directory_that_does_not_exist_is_shown_as_it_was_given(tmp_path: Path) -> None:
    assert found(tmp_path / "gone") == [str(tmp_path / "gone")]


def test_a_large_tree_is_searched_only_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [checkpoint(tmp_path / f"q{number}") for number in range(9)]
    monkeypatch.setattr(module, "MAX_DIRECTORIES", 5)
    assert found(tmp_path) == made[:4]
