"""The golden checkpoints, for tests: which there are, and how to unpack one.

An archive holds `checkpoint/`, `input/`, `rest/` (the input of the last step), `output/` and
`facts.json`. Paths inside the checkpoint's logs name the directory it was made in, `facts["base"]`;
`unpack(…, relocate=True)` rewrites them so that Spark can resume it where it now is.
"""

import io
import json
import lzma
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden.place import Place

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, order=True)
class Golden:
    """One archive: a case as one Spark release left it."""

    release: str
    case: str

    @property
    def archive(self) -> Path:
        return HERE / self.release / f"{self.case}.tar.xz"

    def __str__(self) -> str:
        return f"{self.release}-{self.case}"


@dataclass(frozen=True, slots=True)
class Unpacked(Place):
    """An archive on disk, and what Spark said about it."""

    golden: Golden
    facts: dict[str, Any]


def cases(*, release: str | None = None, case: str | None = None) -> list[Golden]:
    """All archives, or those of one release or one case, in order."""
    found = [
        Golden(path.parent.name, path.name.removesuffix(".tar.xz"))
        for path in HERE.glob("*/*.tar.xz")
    ]
    return sorted(
        each for each in found if release in (None, each.release) and case in (None, each.case)
    )


def facts(golden: Golden) -> dict[str, Any]:
    """What Spark said: the first member of the archive, so the rest need not be decompressed."""
    with tarfile.open(golden.archive) as archive:
        first = archive.next()
        assert first is not None
        assert first.name == "facts.json", f"{golden.archive} does not begin with its facts"
        member = archive.extractfile(first)
        assert member is not None
        found: dict[str, Any] = json.load(member)
        return found


def unpack(golden: Golden, into: Path, *, relocate: bool = False) -> Unpacked:
    """Lay the archive out below `into`, modification times included."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(golden.archive) as archive:
        archive.extractall(into, filter="data")
    found: dict[str, Any] = json.loads((into / "facts.json").read_text(encoding="utf-8"))
    if relocate:
        _relocate(into, found["base"])
    return Unpacked(into, golden, found)


def _relocate(base: Path, made_in: str) -> None:
    """Point the logs that hold absolute paths at `base`; their stale `.crc` files go."""
    logs = (
        *base.glob("checkpoint/sources/*/*"),
        *base.glob("output/_spark_metadata/*"),
        *base.glob("checkpoint/state/*/_metadata/v2/*"),
    )
    for path in logs:
        if path.name.startswith("."):
            continue
        raw = path.read_bytes()
        moved = raw.replace(f"{made_in}/".encode(), f"{base.resolve()}/".encode())
        if moved != raw:
            times = path.stat()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            path.write_bytes(moved)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def pack(base: Path, found: dict[str, Any], archive: Path) -> None:
    """Write the archive of the case laid out at `base`: the same files give the same bytes."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    with (
        lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        header = tarfile.TarInfo("facts.json")
        raw = text.encode("utf-8")
        header.size, header.mode = len(raw), 0o644
        tar.addfile(header, io.BytesIO(raw))
        for path in sorted(base.rglob("*")):
            tar.add(path, str(path.relative_to(base)), recursive=False, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry
