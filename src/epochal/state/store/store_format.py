"""The formats in which Spark's providers keep a store. Pure.

`HDFS` has plain rows: `N.delta` and `N.snapshot` contain UnsafeRows. `ROCKSDB` has the files of a
database: `N.changelog` and `N.zip` contain entries, whose keys and values have a form of their own.
Its names may contain unique ids, and a store may be divided into column families.

Engine, readers, checks and edits ask the format. None of them names a provider.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.checkpoint.restart import HDFS_PROVIDER_CLASS, ROCKSDB_PROVIDER_CLASS
from epochal.state.files.chain import HDFS_FILES, ROCKSDB_FILES, FileNames

if TYPE_CHECKING:
    from epochal.state.store.contract import VersionFiles


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """How a store is kept."""

    name: str
    """What commands and reports call it."""
    provider_class: str
    """What settings call it: the class of Spark's provider."""
    files: FileNames
    is_database: bool = False
    """Whether the files are those of a database, with entries instead of rows."""

    def __str__(self) -> str:
        return self.name

    @property
    def versions(self) -> VersionFiles:
        """How whole versions are read and written.

        It is imported when it is needed: a listing of a checkpoint needs only names, and must start
        fast.
        """
        if self.is_database:
            from epochal.state.store.rocksdb_versions import RocksVersions

            return RocksVersions()
        from epochal.state.store.hdfs_versions import HdfsVersions

        return HdfsVersions()


HDFS = StoreFormat("hdfs", HDFS_PROVIDER_CLASS, HDFS_FILES)
ROCKSDB = StoreFormat("rocksdb", ROCKSDB_PROVIDER_CLASS, ROCKSDB_FILES, is_database=True)
FORMATS = (HDFS, ROCKSDB)
FORMATS_BY_NAME = {kind.name: kind for kind in FORMATS}
DATABASE_FORMAT = ROCKSDB
"""What a query needs whose stores have column families, or whose files have unique ids."""


def format_of_class(provider_class: str) -> StoreFormat | None:
    """The format that settings mean; None for the class of another vendor."""
    return next((kind for kind in FORMATS if kind.provider_class == provider_class), None)


def format_of_files(suffixes: Collection[str]) -> StoreFormat:
    """The format of a store that has files with these endings; Spark's default if none tells."""
    is_database = ROCKSDB_FILES.delta in suffixes or ROCKSDB_FILES.snapshot in suffixes
    return ROCKSDB if is_database else HDFS
