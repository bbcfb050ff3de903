"""Seeded damage to bytes, and small real checkpoints to do it to, held in memory."""

import random
import tarfile
from collections.abc import Callable

from tests.golden.library import Golden

Tree = dict[str, tuple[bytes, int]]
"""Path to bytes and time of modification, as `MemoryFiles` holds it."""


def small_tree(golden: Golden, keep: Callable[[str], bool]) -> Tree:
    """The chosen files of a golden checkpoint; `keep` is asked for visible files only."""
    tree: Tree = {}
    with tarfile.open(golden.archive) as archive:
        for member in archive.getmembers():
            name = member.name.removeprefix("checkpoint/")
            if not member.isfile() or name == member.name or not keep(visible(name)):
                continue
            source = archive.extractfile(member)
            assert source is not None
            tree[name] = (source.read(), 0)
    return tree


def visible(path: str) -> str:
    """The file that a hidden checksum belongs to, or the path itself."""
    folder, slash, name = path.rpartition("/")
    hidden = name.startswith(".") and name.endswith(".crc")
    return f"{folder}{slash}{name[1:-4]}" if hidden else path


def without_checksums(tree: Tree) -> Tree:
    """The same checkpoint as on storage that keeps no hidden checksums."""
    return {path: held for path, held in tree.items() if visible(path) == path}


def mutate(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Damage `data` in one of the ways disks, tools and people do; never returns it unchanged."""
    while True:
        changed = _mutations[draw.randrange(len(_mutations))](draw, data, others)
        if changed != data:
            return changed


def _flip_bit(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    if not data:
        return b"\0"
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _set_byte(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _set_digit(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return _flip_bit(draw, data, others)
    at = draw.choice(digits)
    return data[:at] + bytes([draw.randrange(48, 58)]) + data[at + 1 :]


def _cut(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    return data[: draw.randrange(len(data) + 1)]


def _drop(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[at + draw.randrange(1, 20) :]


def _insert(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.randrange(1, 20)) + data[at:]


def _repeat(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    at = draw.randrange(len(data) + 1)
    end = at + draw.randrange(1, 40)
    return data[:end] + data[at:end] + data[end:]


def _blank(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del others
    at = draw.randrange(len(data) + 1)
    length = min(draw.randrange(1, 64), len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def _exchange(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    del data
    return draw.choice(others)


_mutations = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _set_digit,
    _cut,
    _drop,
    _insert,
    _repeat,
    _blank,
    _exchange,
)
