"""Opens the catalog and the table, creates the table if it is absent, and words their errors.

The client library checks little before it writes. So the sink checks the table here: a table whose
rules it would break is refused before anything is written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.table import Table

from epochal.connectors.iceberg.iceberg_options import MAIN, IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_schema import (
    columns_of,
    new_table_schema,
    query_columns,
    type_fits,
)
from epochal.connectors.table_columns import (
    key_reasons,
    match_columns,
    partition_reasons,
    unknown_names,
)
from epochal.errors import OptionError, TableError, TableMismatchError, TableUnavailableError
from epochal.options import without_secrets

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
NEW_TABLE = {
    "format-version": str(FORMAT_VERSION),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""The properties of tables that the sink creates. Every commit writes a file with the table's
metadata; without these settings, an epoch per second would leave 86,400 of them per day."""


def open_catalog(options: IcebergSinkOptions) -> Catalog:
    if not options.catalog_settings:
        raise OptionError(
            "iceberg: no catalog is given. Set its type and address, such as "
            ".option('catalog.type', 'rest').option('catalog.uri', 'http://…')."
        )
    with catalog_errors(options):
        try:
            return load_catalog(options.catalog_name, **options.catalog_settings)
        except (ValueError, ModuleNotFoundError) as error:
            text = without_secrets(str(error), options.catalog)
            raise OptionError(f"iceberg: the settings catalog.* are not usable: {text}") from None


@contextmanager
def catalog_errors(options: IcebergSinkOptions) -> Iterator[None]:
    """Turn errors of the catalog and its storage into ours, without passwords.

    Conflicts of commits pass through.
    """
    table = f"table {options.table}"
    try:
        yield
    except NoSuchTableError:
        raise TableError(
            table,
            f"it does not exist any more in catalog {options.catalog_name}. Nothing of the query "
            f"is lost: restore the table and start the query again, which then commits what is "
            f"missing. To begin anew, use a new checkpointLocation",
        ) from None
    except (UnauthorizedError, ForbiddenError) as error:
        text = without_secrets(str(error), options.catalog)
        raise TableError(
            table,
            f"catalog {options.catalog_name} denies access ({text}). Check the settings catalog.*, "
            f"and that the user may write to the table",
        ) from None
    except (CommitFailedException, CommitStateUnknownException):
        raise
    except _failures() as error:
        text = without_secrets(str(error), options.catalog)
        raise TableUnavailableError(
            table,
            f"catalog {options.catalog_name} or the table's storage failed ({text}). Nothing is "
            f"lost: the next attempt commits what is missing",
        ) from None


def _failures() -> tuple[type[Exception], ...]:
    """The errors of catalogs and storages."""
    database = sys.modules.get("sqlalchemy.exc")  # loaded only for catalogs in a database
    more: tuple[type[Exception], ...] = () if database is None else (database.SQLAlchemyError,)
    return (RESTError, OSError, *more)


def find_table(catalog: Catalog, options: IcebergSinkOptions) -> Table | None:
    """The table; None if there is none."""
    with catalog_errors(options):
        try:
            return catalog.load_table(options.table)
        except NoSuchTableError:
            return None


def create_table(
    catalog: Catalog,
    options: IcebergSinkOptions,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
) -> Table:
    """Create the table, or load it if another query has just created it."""
    query_columns(options.table, schema)  # for its checks
    unknown = unknown_names("partitionBy", partition_by, schema.names)
    if unknown:
        raise TableMismatchError(options.table, tuple(unknown))
    with catalog_errors(options):
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(options.table.rpartition(".")[0])
        try:
            change = catalog.create_table_transaction(
                options.table, new_table_schema(schema), properties={**NEW_TABLE, **properties}
            )
            if partition_by:
                with change.update_spec() as spec:
                    for name in partition_by:
                        spec.add_identity(name)
            change.commit_transaction()
        except (TableAlreadyExistsError, CommitFailedException):
            logger.info("iceberg sink: another query has just created %s", options.table)
        return catalog.load_table(options.table)


def check_table(options: IcebergSinkOptions, table: Table, partition_by: Sequence[str]) -> None:
    """Raise TableMismatchError if the sink would break the table's rules."""
    reasons = []
    version, properties = table.metadata.format_version, table.metadata.properties
    if version != FORMAT_VERSION:
        do = (
            "Upgrade it with Spark: ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2')."
            if version < FORMAT_VERSION
            else "Use a table of version 2."
        )
        reasons.append(f"the table has format version {version}, but this sink writes 2. {do}")
    form = properties.get("write.format.default", "parquet").lower()
    if form != "parquet":
        reasons.append(
            f"the table is written as {form} (write.format.default), but this sink writes Parquet. "
            f"Change the property, or use another table."
        )
    encrypted = [name for name in properties if name.startswith("encryption.")]
    if encrypted:
        reasons.append(
            f"the table is encrypted ({', '.join(sorted(encrypted))}), but this sink writes plain "
            f"files. Use another table."
        )
    reasons += partition_reasons(partition_by, [field.name for field in table.spec().fields])
    ref = table.metadata.refs.get(options.branch)
    if ref is not None and ref.snapshot_ref_type.value != "branch":
        reasons.append(f"{options.branch} is a tag of the table, not a branch. Choose a branch.")
    if reasons:
        raise TableMismatchError(options.table, tuple(reasons))


def fit_columns(options: IcebergSinkOptions, table: Table, schema: pa.Schema) -> tuple[str, ...]:
    """Check the query's columns against the table's; add those that only the query has.

    Returns the names of the query's columns.
    """
    query = query_columns(options.table, schema)
    match = match_columns(
        options.table,
        query,
        columns_of(table.schema()),
        may_add=options.merge_schema,
        to_add="Add it to the table, or set the option mergeSchema to true.",
        fits=type_fits,
    )
    if match.added:
        names = {column.name for column in match.added}
        new = pa.schema([field for field in new_table_schema(schema) if field.name in names])
        with catalog_errors(options):
            try:
                with table.update_schema() as update:
                    update.union_by_name(new)
            except CommitFailedException:
                # Another writer has changed the table. Compare with what it is now.
                table.refresh()
                return fit_columns(options, table, schema)
    reasons = key_reasons(options.merge_keys, query)
    if reasons:
        raise TableMismatchError(options.table, tuple(reasons))
    return tuple(schema.names)


def settle_branch(options: IcebergSinkOptions, table: Table) -> None:
    """Create the branch from main if it does not exist."""
    if options.branch == MAIN or options.branch in table.metadata.refs:
        return
    with catalog_errors(options):
        try:
            if MAIN not in table.metadata.refs:
                # The library writes the first snapshot of a table only to main, so main gets one
                # without files.
                with table.transaction() as transaction:
                    transaction.update_snapshot().fast_append().commit()
            head = table.metadata.refs[MAIN]
            with table.manage_snapshots() as change:
                change.create_branch(head.snapshot_id, options.branch)
        except CommitFailedException:
            table.refresh()
            settle_branch(options, table)
