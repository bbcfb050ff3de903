"""Local files: crc files, and a crash at every system call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import StorageError
from epochal.files.local import LocalFiles
from epochal.testing.files import Crash

CHANGING_CALLS = ("link", "unlink", "rename", "rmdir", "mkdir", "fsync")


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def visible(root: Path) -> dict[str, bytes]:
    """The tree without temporary files, which every reader ignores."""
    return {path: data for path, data in tree(root).items() if not path.endswith(".tmp")}


def orphans(root: Path) -> list[str]:
    """Hidden crc files whose file is missing: each would make Spark's next start fail."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob(".*.crc")
        if not path.with_name(path.name[1 : -len(".crc")]).exists()
    ]


def fill(root: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_a_refused_create_leaves_the_crc_of_the_file_that_is_there(tmp_path: Path) -> None:
    fill(tmp_path, {"0": b"old", ".0.crc": b"its crc"})
    with pytest.raises(FileExistsError):
        LocalFiles(tmp_path).create("0", b"new")
    assert tree(tmp_path) == {"0": b"old", ".0.crc": b"its crc"}


def test_delete_drops_an_orphaned_crc(tmp_path: Path) -> None:
    fill(tmp_path, {".0.crc": b""})
    LocalFiles(tmp_path).delete("0")
    assert tree(tmp_path) == {}


def test_the_temporary_file_is_named_as_spark_names_it(tmp_path: Path) -> None:
    out = LocalFiles(tmp_path).create_atomic("7")
    (name,) = os.listdir(tmp_path)
    out.cancel()
    assert name.startswith(".7.")
    assert name.endswith(".tmp")
    assert len(name) == len(".7.") + 36 + len(".tmp")


class Dying:
    """Lets `steps` modifying system calls happen; the next one, and all after it, fail."""

    def __init__(self, steps: int, patch: pytest.MonkeyPatch) -> None:
        self.left = steps
        self.dead = False
        for name in CHANGING_CALLS:
            patch.setattr(os, name, self.wrapped(getattr(os, name)))

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.dead or self.left == 0:
                self.dead = True
                raise Crash
            self.left -= 1
            return call(*args, **kwargs)

        return wrapper


def die_at_every_step(
    tmp_path: Path, before: dict[str, bytes], act: Callable[[LocalFiles], None]
) -> list[Path]:
    """Run `act` once for each system call at which it can die, and once to its end."""
    roots = []
    for steps in range(100):
        root = tmp_path / str(steps)
        root.mkdir()
        fill(root, before)
        with pytest.MonkeyPatch.context() as patch:
            dying = Dying(steps, patch)
            try:
                act(LocalFiles(root))
            except Crash:
                assert dying.dead
        roots.append(root)
        if not dying.dead:
            return roots
    raise AssertionError("never came to its end")


@pytest.mark.parametrize("before", [{}, {"log/.0.crc": b"orphan"}])
def test_a_create_that_dies_leaves_the_name_free_or_whole(
    tmp_path: Path, before: dict[str, bytes]
) -> None:
    roots = die_at_every_step(tmp_path, before, lambda files: files.create("log/0", b"new"))
    outcomes = []
    for root in roots:
        found = visible(root)
        outcomes.append(found)
        assert found in (before, {}, {"log/0": b"new"})
        if "log/0" not in found:
            LocalFiles(root).create("log/0", b"again")
            assert visible(root) == {"log/0": b"again"}
        assert orphans(root) == []
    assert outcomes[0] == before
    assert outcomes[-1] == {"log/0": b"new"}


@pytest.mark.parametrize("before", [{"0": b"old"}, {"0": b"old", ".0.crc": b"crc of old"}])
def test_a_replace_that_dies_leaves_the_old_or_the_new_and_no_wrong_crc(
    tmp_path: Path, before: dict[str, bytes]
) -> None:
    roots = die_at_every_step(tmp_path, before, lambda files: files.replace("0", b"new"))
    outcomes = [visible(root) for root in roots]
    assert all(found in (before, {"0": b"old"}, {"0": b"new"}) for found in outcomes)
    assert outcomes[-1] == {"0": b"new"}


def test_a_delete_that_dies_leaves_no_orphaned_crc(tmp_path: Path) -> None:
    before = {"0": b"old", ".0.crc": b"crc of old"}
    roots = die_at_every_step(tmp_path, before, lambda files: files.delete("0"))
    assert [orphans(root) for root in roots] == [[]] * len(roots)
    assert [visible(root) for root in roots] == [before, {"0": b"old"}, {}]


def test_a_delete_tree_that_dies_leaves_no_orphaned_crc(tmp_path: Path) -> None:
    before = {
        f"offsets/{folder}{name}": b""
        for folder in ("", "deep/")
        for name in ("0", ".0.crc", "1", ".1.crc", "-x", ".-x.crc")
    }
    roots = die_at_every_step(tmp_path, before, lambda files: files.delete_tree("offsets"))
    assert len(roots) > len(before)
    assert [orphans(root) for root in roots] == [[]] * len(roots)
    assert tree(roots[-1]) == {}


def test_a_temporary_name_that_cannot_be_removed_does_not_undo_the_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    out = LocalFiles(tmp_path).create_atomic("0")
    out.write(b"new")
    monkeypatch.setattr(os, "unlink", lambda path: refuse(path) if ".tmp" in path else None)
    out.close()
    assert visible(tmp_path) == {"0": b"new"}


def test_a_disk_without_hard_links_is_rejected_with_an_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="hard link") as refused:
        LocalFiles(tmp_path).create("0", b"new")
    assert str(tmp_path / "0") in str(refused.value)
    assert tree(tmp_path) == {}


def test_a_full_disk_is_reported_with_the_file_it_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refused:
        LocalFiles(tmp_path).create("0", b"new")
    assert str(tmp_path / "0") in str(refused.value)
    assert tree(tmp_path) == {}


def test_a_durable_create_syncs_the_file_then_its_directory_and_new_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        real_fsync(descriptor)

    def link(source: str, target: str) -> None:
        synced.append("link")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    LocalFiles(tmp_path).create("a/b/0", b"new")
    assert synced[:2] == [".", "a"]
    assert synced[2].startswith("a/b/.0.")
    assert synced[3:] == ["link", "a/b"]


def test_a_file_that_need_not_be_durable_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("synced"))
    LocalFiles(tmp_path, durable=False).create("a/0", b"new")
    assert tree(tmp_path) == {"a/0": b"new"}


def test_delete_tree_goes_on_when_somebody_else_deletes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, {f"state/{n}": b"" for n in range(5)})
    real_unlink = os.unlink
    gone: list[object] = []

    def unlink(path: Any, **where: Any) -> None:
        real_unlink(path, **where)
        if not gone:
            gone.append(path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(os, "unlink", unlink)
    LocalFiles(tmp_path).delete_tree("state")
    assert os.listdir(tmp_path) == []


def test_a_directory_that_must_exist_is_not_created_again(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint"
    root.mkdir()
    files = LocalFiles(root, existing=root)
    files.create("offsets/0", b"first")
    files.at("state/0").create("1/2.delta", b"state")
    root.rename(tmp_path / "moved")
    writes: list[Callable[[], object]] = [
        lambda: files.create("offsets/1", b""),
        lambda: files.replace("offsets/0", b""),
        lambda: files.at("state").make_dirs("0/1"),
        lambda: files.make_dirs(),
        lambda: files.at("state/0").create("1/3.delta", b""),
    ]
    for write in writes:
        with pytest.raises(StorageError, match="deleted or moved"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    assert tree(tmp_path / "moved") == {"offsets/0": b"first", "state/0/1/2.delta": b"state"}
