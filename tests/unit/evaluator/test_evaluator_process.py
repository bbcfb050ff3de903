"""What evaluators keep for later starts: where it is, and when it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.evaluator.evaluator_process import cache_folder, code_in
from epochal.evaluator.executor_jvm import Code, ExecutorProcess


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "java"
    folder.mkdir()
    (folder / "Evaluator.java").write_text("class Evaluator {}")
    return folder


def folder_of(tmp_path: Path, sources: Path, jars: str = "/spark/jars/*") -> Path | None:
    executor = ExecutorProcess(17, "/usr/bin/java", ("java", "-cp", jars, "org.apache.spark.Main"))
    return cache_folder(executor, {"XDG_CACHE_HOME": str(tmp_path / "cache")}, sources)


def test_another_spark_and_other_sources_have_other_folders(tmp_path: Path, sources: Path) -> None:
    first = folder_of(tmp_path, sources)
    assert first == folder_of(tmp_path, sources)
    other = folder_of(tmp_path, sources, "/other/jars/*")
    (sources / "Evaluator.java").write_text("class Evaluator { }")
    assert len({first, other, folder_of(tmp_path, sources)}) == 3


def test_a_folder_in_which_others_can_write_is_not_used(tmp_path: Path, sources: Path) -> None:
    folder = folder_of(tmp_path, sources)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert folder_of(tmp_path, sources) is None


def test_a_home_that_cannot_be_written_means_no_cache(tmp_path: Path, sources: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    assert folder_of(tmp_path, sources) is None
    assert code_in(None, sources) == Code(sources)


def test_files_are_used_as_far_as_they_are_there(tmp_path: Path, sources: Path) -> None:
    folder = folder_of(tmp_path, sources)
    assert folder is not None
    archive, jar = folder / "evaluator.jsa", folder / "evaluator.jar"
    archive.touch()
    assert code_in(folder, sources) == Code(sources)
    jar.touch()
    assert code_in(folder, sources) == Code(sources, jar, archive)
    archive.unlink()
    assert code_in(folder, sources) == Code(sources, jar)
