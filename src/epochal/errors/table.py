"""Errors of sinks that write tables: Delta Lake, Apache Iceberg, PostgreSQL."""

from __future__ import annotations

from epochal.errors.base import EpochalError, OptionError


class TableError(EpochalError):
    """A table cannot be written."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table, self.reason = table, reason

    def __str__(self) -> str:
        return f"{self.table}: {self.reason}"


class TableUnavailableError(TableError):
    """A table's catalog or storage does not work at the moment."""


class TableConflictError(TableError):
    """Other writers changed a table again and again while an epoch was being committed."""

    def __init__(self, table: str, epoch: int, tries: int, reason: str) -> None:
        super().__init__(table, reason)
        self.args = (table, epoch, tries, reason)
        self.epoch, self.tries = epoch, tries

    def __str__(self) -> str:
        return (
            f"{self.table}: epoch {self.epoch} could not be committed in {self.tries} tries, "
            f"because other writers changed the table each time. The last answer was: "
            f"{self.reason}. Nothing is lost: the next attempt commits the epoch. If this happens "
            f"often, let fewer writers change the table, or use longer epochs."
        )


class TableRowError(TableError):
    """A row of a query's output does not fit into its table."""

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.reason}. The row was not written, and no other row of its "
            f"epoch. Correct or filter such rows in the query, or change the table."
        )


class TableMismatchError(OptionError):
    """A query's columns or output mode do not fit a table, or the table needs what we lack."""

    def __init__(self, table: str, reasons: tuple[str, ...]) -> None:
        super().__init__(table, reasons)
        self.table, self.reasons = table, reasons

    def __str__(self) -> str:
        listed = "".join(f"\n  - {each}" for each in self.reasons)
        return f"The query cannot write to {self.table}. Nothing was written.{listed}"
