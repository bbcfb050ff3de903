"""The options of `write_stream.format("iceberg")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from epochal.connectors.formats import check_positive
from epochal.connectors.tables.compaction import Compaction, TableWriting
from epochal.errors import OptionError
from epochal.options import ByteSize

MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSinkOptions(TableWriting):
    """Which table, in which catalog, and what is done for it beside the epochs."""

    table: str = field(metadata={"also": ("path",)})
    """The table with its namespace, such as `sales.orders`. It is created if it does not exist."""

    catalog: Mapping[str, str] = field(
        default_factory=dict, repr=False, metadata={"prefix": "catalog."}
    )
    """The settings of the catalog as pyiceberg takes them: `catalog.type`, `catalog.uri`, …"""

    branch: str = MAIN
    """Rows are written to this branch. It is created from main if it does not exist."""

    partition_by: tuple[str, ...] = ()
    """Columns whose values partition the table, if the sink creates it."""

    expire_snapshots_keep: int | None = None
    """Expire snapshots, but keep at least this many of each branch."""

    expire_snapshots_after: timedelta | None = None
    """Expire snapshots that are older than this. Without it, only their number counts."""

    compact_min_files: int = 10
    """Fewer small files of a partition than this are left alone: a commit costs more here than in
    other tables."""

    compact: bool = False
    """Compact in each `maintenanceInterval`: what `compactInterval` was called before."""

    compact_below: ByteSize | None = None
    """Half of `targetFileBytes`, as it was called before."""

    maintenance_interval: timedelta = timedelta(minutes=1)
    """How often snapshots are expired."""

    def __post_init__(self) -> None:
        self.check_table_options("iceberg")
        check_positive(
            "iceberg",
            compact_below=self.compact_below,
            expire_snapshots_keep=self.expire_snapshots_keep,
        )
        if not all(self.table.split(".")) or "." not in self.table:
            raise OptionError(
                f"iceberg: the table is named with its namespace, such as sales.orders, not "
                f"{self.table!r}. Set .option('table', 'NAMESPACE.NAME')."
            )

    @property
    def expires(self) -> bool:
        """Whether snapshots are expired."""
        return self.expire_snapshots_keep is not None or self.expire_snapshots_after is not None

    @property
    def compaction(self) -> Compaction:
        """The options of compaction, also where they were given by their former names."""
        every = self.maintenance_interval if self.compact else None
        below = self.compact_below
        return Compaction(
            compact_interval=self.compact_interval or every,
            target_file_bytes=self.target_file_bytes if below is None else 2 * below,
            compact_min_files=self.compact_min_files,
        )

    @property
    def catalog_name(self) -> str:
        """The catalog's name. Catalogs in databases store it with every table."""
        return self.catalog.get("name", "default")

    @property
    def catalog_settings(self) -> dict[str, str]:
        """The settings for pyiceberg's `load_catalog`."""
        return {key: value for key, value in self.catalog.items() if key != "name"}
