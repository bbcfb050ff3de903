"""Lists the state of a checkpoint as of a batch: operators, stores or variables, and schemas."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from epochal.checkpoint.layout import DEFAULT_STORE
from epochal.checkpoint.operator_metadata import list_operators
from epochal.errors import StateReadError
from epochal.state.rows.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    UserDefinedType,
)
from epochal.tools.inspect.listing import list_all
from epochal.tools.inspect.state_listing import operators_of
from epochal.tools.read_state.read_target import StateBatch


@dataclass(frozen=True, slots=True)
class StoreOverview:
    """A store, a column family or a variable."""

    operator_id: int
    operator_name: str | None
    name: str
    kind: str
    """`store`, `family`, or the kind of a variable."""
    partitions: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a checkpoint as of one batch."""

    batch_id: int
    version: int
    provider: str
    partitions: int | None
    codec: str
    stores: tuple[StoreOverview, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def overview(batch: StateBatch) -> Overview:
    """List every operator. If a store's schema cannot be read, the reason replaces its key."""
    listed = {operator.operator: operator for operator in operators_of(list_all(batch.files))}
    stores: list[StoreOverview] = []
    for operator_id in list_operators(batch.files):
        names = listed[operator_id].store_names if operator_id in listed else [DEFAULT_STORE]
        stores += _stores(batch, operator_id, names)
    settings = batch.settings
    return Overview(
        batch.batch_id,
        batch.version,
        settings.format.name,
        settings.partitions,
        settings.codec,
        tuple(stores),
    )


def _stores(batch: StateBatch, operator_id: int, names: list[str]) -> list[StoreOverview]:
    operator_name = batch.operator_name(operator_id)
    variables = batch.variables(operator_id)
    stores: list[StoreOverview] = []
    for store_name in names:
        try:
            schemas = batch.schemas(operator_id, store_name)
            partitions = len(batch.partitions(operator_id))
        except StateReadError as error:
            stores.append(
                StoreOverview(operator_id, operator_name, store_name, "store", 0, error.reason, "")
            )
            continue
        for family, schema in sorted(schemas.items()):
            plain = family == DEFAULT_STORE
            if variables is not None and (plain or family.startswith("$")):
                continue
            kind = "store" if plain else "family"
            if variables is not None and family in variables:
                kind = variables[family].kind
            stores.append(
                StoreOverview(
                    operator_id,
                    operator_name,
                    store_name if plain else family,
                    kind,
                    partitions,
                    describe(schema.key),
                    describe(schema.value),
                )
            )
    return stores


def describe(kind: DataType) -> str:
    """A type as Spark's `simpleString` shows it."""
    match kind:
        case StructType(fields=fields):
            return f"struct<{','.join(f'{f.name}:{describe(f.data_type)}' for f in fields)}>"
        case ArrayType(element=element):
            return f"array<{describe(element)}>"
        case MapType(key=key, value=value):
            return f"map<{describe(key)},{describe(value)}>"
        case DecimalType(precision=precision, scale=scale):
            return f"decimal({precision},{scale})"
        case UserDefinedType(sql_type=inner):
            return describe(inner)
    names = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
    return names.get(kind.name, kind.name)
