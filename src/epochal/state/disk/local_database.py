"""A database on local disk, for state that does not fit into the memory of a task.

Each task has its own RocksDB (through `rocksdict`, extra `rocksdb`), with a table for each store.
It is a working copy. The checkpoint alone is the truth, so nothing is synced and there is no log. A
task starts with an empty directory and removes it when it ends. Directories of tasks that were
killed are removed by the next task that uses the same local directory.

Note: a directory is in use as long as a process holds the lock on its file `owner`. A process id
would not do: after a restart of the host it may belong to another process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

from epochal.errors import LocalStateError
from epochal.state.files.rocksdb_snapshot import import_rocksdict
from epochal.state.store.versions import PrefixesOf

MIN_MEMORY_BYTES = 32 << 20
"""Below this, RocksDB's buffers would be so small that it mostly merges files."""

_NEEDED_FOR = "State on local disk (option stateMemory)"
_NAME = "epochal-state-"
_OWNER, _ENGINE = "owner", "rocksdb"
_TABLE = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_WRITTEN_AT_ONCE = 8192
_NOT_FOUND = "key not found"
"""What a snapshot of `rocksdict` raises, as a plain Exception, for a key that it does not have."""
_MIN_BUFFER, _MAX_BUFFER = 4 << 20, 64 << 20

DiskEntry: TypeAlias = tuple[bytes, bytes]


def check_library() -> None:
    """Raise OptionError with instructions if the library is not installed."""
    import_rocksdict(_NEEDED_FOR)


class LocalDatabase:
    """The database of one task. `memory_bytes` bounds its caches and buffers."""

    def __init__(self, local_dir: str | None, memory_bytes: int) -> None:
        self._rocksdict = import_rocksdict(_NEEDED_FOR)
        self._lock = threading.Lock()
        self._tables = 0
        self.memory_bytes = memory_bytes
        self.closed = False
        self.path, self._owner = _new_directory(local_dir)
        try:
            self._options = _write_options(self._rocksdict)
            self.engine: Any = self._rocksdict.Rdict(
                str(self.path / _ENGINE), _options(self._rocksdict, memory_bytes)
            )
            self.engine.set_write_options(self._options)
        except Exception as error:
            self._remove()
            raise LocalStateError(str(self.path), f"it cannot be opened ({error})") from error

    def table(self, prefixes_of: PrefixesOf | None = None) -> DiskTable:
        """A new, empty table. With `prefixes_of`, it can be scanned by these prefixes of keys."""
        with self._lock:
            self._tables += 1
            return DiskTable(self, self._tables, prefixes_of)

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> int:
        """Write many entries, or delete those whose value is None. Returns how many there were."""
        count, batch = 0, self._rocksdict.WriteBatch(raw_mode=True)
        try:
            for key, value in changes:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                count += 1
                if count % _WRITTEN_AT_ONCE == 0:
                    self.engine.write(batch, self._options)
                    batch = self._rocksdict.WriteBatch(raw_mode=True)
            self.engine.write(batch, self._options)
        except Exception as error:
            raise self._failed("written", error) from error
        return count

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self.engine.get(key)
        except Exception as error:
            raise self._failed("read", error) from error
        return value

    def entries(self, start: bytes, end: bytes, *, once: bool = False) -> Iterator[DiskEntry]:
        """The entries from `start` to before `end`, in order, as of this call.

        `once` keeps what is read out of the cache: a scan of everything would replace its content.
        """
        # No upper bound in the options: `rocksdict` would refer to it after it is freed.
        options = self._rocksdict.ReadOptions()
        options.fill_cache(not once)
        try:
            # RocksDB's iterators show the entries of the moment at which they were created.
            entries: Iterator[DiskEntry] = self.engine.items(from_key=start, read_opt=options)
        except Exception as error:
            raise self._failed("read", error) from error
        return takewhile(lambda entry: entry[0] < end, entries)

    def get_at(self, snapshot: Any, key: bytes) -> bytes | None:
        try:
            value: bytes = snapshot[key]
        except Exception as error:
            if str(error) == _NOT_FOUND:
                return None
            raise self._failed("read", error) from error
        return value

    def drop(self, start: bytes, end: bytes) -> None:
        self.engine.delete_range(start, end)

    def snapshot(self) -> Any:
        """The entries of this moment. It is released when nothing refers to it."""
        return self.engine.snapshot()

    def close(self) -> None:
        self.closed = True
        self.engine.close()
        self._remove()

    def _remove(self) -> None:
        # The file `owner` goes last, so that the next task finds what is left if this one is killed
        # in between.
        shutil.rmtree(self.path / _ENGINE, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._owner)

    def _failed(self, what: str, error: Exception) -> LocalStateError:
        return LocalStateError(str(self.path), f"it cannot be {what} ({error})")


class DiskTable:
    """A part of a database: a map from bytes to bytes, with one writer.

    With `prefixes_of`, an entry starts with the prefix of its key, so that the keys with a prefix
    are together.
    """

    def __init__(
        self, database: LocalDatabase, number: int, prefixes_of: PrefixesOf | None
    ) -> None:
        self.database, self.prefixes_of = database, prefixes_of
        self.head, self.end = _TABLE.pack(number), _TABLE.pack(number + 1)

    def __del__(self) -> None:
        if not self.database.closed:
            self.database.drop(self.head, self.end)

    def get(self, key: bytes) -> bytes | None:
        return self.database.get(self.entry(key))

    def scan(self, prefix: bytes) -> Iterator[DiskEntry]:
        """The newest rows whose key has this prefix: see `range_of`."""
        key_of = self.key_of
        for entry, value in self.database.entries(*self.range_of(prefix)):
            yield key_of(entry), value

    def range_of(self, prefix: bytes) -> tuple[bytes, bytes]:
        """The entries of all keys with this prefix; without `prefixes_of`, of its bytes."""
        start = self.head + prefix
        if self.prefixes_of is not None:
            start = self.head + _LENGTH.pack(len(prefix)) + prefix
        return start, _after(start)

    def entry(self, key: bytes) -> bytes:
        return self.head + key if self.prefixes_of is None else self.entries([key])[0]

    def entries(self, keys: Sequence[bytes]) -> list[bytes]:
        head = self.head
        if self.prefixes_of is None:
            return [head + key for key in keys]
        prefixes = self.prefixes_of(keys)
        return [
            head + _LENGTH.pack(len(prefix)) + prefix + key
            for prefix, key in zip(prefixes, keys, strict=True)
        ]

    def key_of(self, entry: bytes) -> bytes:
        start = _TABLE.size
        if self.prefixes_of is not None:
            start += _LENGTH.size + _LENGTH.unpack_from(entry, start)[0]
        return entry[start:]


def _after(start: bytes) -> bytes:
    """The least bytes above everything that begins with `start`."""
    prefix = start.rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _new_directory(local_dir: str | None) -> tuple[Path, int]:
    root = Path(local_dir or tempfile.gettempdir())
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        path = Path(tempfile.mkdtemp(prefix=_NAME, dir=root))
        owner = os.open(path / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LocalStateError(str(root), f"a directory cannot be made in it ({error})") from error
    return path, owner


def _sweep(root: Path) -> None:
    """Remove the directories of tasks that were killed."""
    for directory in root.glob(f"{_NAME}*"):
        try:
            owner = os.open(directory / _OWNER, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is being made or removed, or belongs to another user
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(owner)


def _options(rocksdict: Any, memory_bytes: int) -> Any:
    """Half of the memory for blocks, indexes and filters; an eighth for what is being written."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(memory_bytes // 2))
    blocks.set_bloom_filter(10, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # In parts: whole, those of a large file have megabytes. They do not fit into a shard of the
    # cache together, and would be read again for almost every key.
    blocks.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_pin_top_level_index_and_filter(True)
    blocks.set_format_version(5)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(max(_MIN_BUFFER, min(_MAX_BUFFER, memory_bytes // 24)))
    options.set_max_write_buffer_number(3)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_keep_log_file_num(1)
    return options


def _write_options(rocksdict: Any) -> Any:
    options = rocksdict.WriteOptions()
    options.disable_wal = True
    return options
