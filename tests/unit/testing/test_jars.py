"""The cache of jars: concurrent processes never see a partial set."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from epochal.errors import ComponentError, OptionError
from epochal.testing import jars

COORDINATE = "org.example:thing:1.0"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPOCHAL_CACHE", str(tmp_path))
    return tmp_path


def downloads(monkeypatch: pytest.MonkeyPatch, together: int = 1) -> list[str]:
    """Replaces Ivy. Each download waits until `together` downloads have started."""
    asked: list[str] = []
    meeting = threading.Barrier(together)

    def download(wanted: str, work: Path, named: str) -> Path:
        asked.append(named)
        meeting.wait(30)
        filled = work / "jars"
        filled.mkdir()
        for name in ("b.jar", "a.jar"):
            (filled / name).write_bytes(b"jar")
        return filled

    monkeypatch.setattr(jars, "_download", download)
    return asked


def test_jars_are_downloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = downloads(monkeypatch)
    first = jars.resolve(COORDINATE, "org.example:other:2.0")
    assert [path.name for path in first] == ["a.jar", "b.jar"]
    assert jars.resolve("org.example:other:2.0", COORDINATE) == first
    assert asked == [f"{COORDINATE} and org.example:other:2.0"]


def test_two_concurrent_downloads_both_get_the_complete_set(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads(monkeypatch, together=2)
    found: list[list[Path]] = []
    threads = [
        threading.Thread(target=lambda: found.append(jars.resolve(COORDINATE))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert [path.name for path in found[0]] == ["a.jar", "b.jar"]
    assert len(list((cache / "jars").iterdir())) == 1


def test_a_failed_fetch_leaves_nothing_in_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wanted: str, work: Path, named: str) -> Path:
        (work / "half.jar").write_bytes(b"")
        raise ComponentError(f"Cannot resolve {named}")

    monkeypatch.setattr(jars, "_download", fail)
    with pytest.raises(ComponentError):
        jars.resolve(COORDINATE)
    assert list((cache / "jars").iterdir()) == []


@pytest.mark.parametrize("coordinate", ["thing", "org.example:thing", "a:b:c:d:e", "a::1"])
def test_a_malformed_coordinate_is_rejected(coordinate: str) -> None:
    with pytest.raises(OptionError, match="of the form group:artifact:version"):
        jars.resolve(coordinate)


def test_the_error_for_a_missing_java_names_the_required_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ComponentError, match="Java 17"):
        jars.find_java()
