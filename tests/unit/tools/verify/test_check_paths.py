"""Checkpoints and sink logs that Spark 2.4 left under wrongly escaped names."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.files.local import LocalFiles
from epochal.tools.verify.verify import escaped, unescaped
from epochal.tools.verify.verify import verify

SPECIAL = "chk %@#chk"
LEGACY = "chk%252520%252525@%252523chk"


def a_checkpoint(where: Path) -> None:
    (where / "offsets").mkdir(parents=True)
    (where / "metadata").write_text('{"id":"09be7fb3-49d8-48a6-840d-e9c2ad92a898"}')


def codes(where: Path) -> list[tuple[str, str]]:
    return [(each.code, each.path) for each in verify(LocalFiles(where)).findings]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (f"/a/{SPECIAL}", f"/a/{LEGACY}"),
        ("/foo/bar", "/foo/bar"),
        ("hdfs://b ar:1/foo/bär", "hdfs://b ar:1/foo/bär"),
        ("s3://bucket/b ar/c", "s3://bucket/b%252520ar/c"),
    ],
)
def test_only_special_characters_of_the_path_were_escaped(location: str, expected: str) -> None:
    assert escaped(location, 3) == expected
    assert unescaped(expected, 3) == (None if location == expected else location)


@pytest.mark.parametrize("location", ["/a/b%20c", "/a/%25", "/a/plain", "/a/b%252520c d"])
def test_a_name_that_the_old_spark_never_made_stands_for_nothing_else(location: str) -> None:
    assert unescaped(location, 3) is None


def test_a_checkpoint_whose_escaped_twin_is_there_is_not_healthy(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / SPECIAL)
    assert codes(tmp_path / SPECIAL) == []
    a_checkpoint(tmp_path / LEGACY)
    assert codes(tmp_path / SPECIAL) == [("PATH_ESCAPED", ".")]


def test_the_twin_is_named_where_the_checkpoint_itself_is_not_there(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / LEGACY)
    report = verify(LocalFiles(tmp_path / SPECIAL))
    assert [each.code for each in report.findings] == ["PATH_ESCAPED"]
    assert LEGACY in report.findings[0].message
    assert not (tmp_path / SPECIAL).exists()
    with pytest.raises(FileNotFoundError):
        verify(LocalFiles(tmp_path / "another one"))


def test_an_escaped_checkpoint_says_whose_it_is(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / LEGACY)
    (found,) = verify(LocalFiles(tmp_path / LEGACY)).findings
    assert found.code == "PATH_ESCAPED"
    assert str(tmp_path / SPECIAL) in found.message


def test_the_log_of_a_sink_was_escaped_once(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "out put").mkdir()
    (tmp_path / "out%20put" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out%20put" / "_spark_metadata" / "0").write_text("v1")
    report = verify(LocalFiles(tmp_path / "checkpoint"), sink=LocalFiles(tmp_path / "out put"))
    assert [(each.code, each.path) for each in report.findings] == [
        ("PATH_ESCAPED", "_spark_metadata")
    ]
