"""Stores the parts of a query that may not change, and checks them at every start.

The query's id is in `metadata`, as in Spark. The stateful operators, their keys and the names of
their stores are in `.epochal/plan`. Schemas and operator metadata are where Spark keeps them, so
that its state reader and ours can open the state. Each file is created only if absent: if two runs
race, both must match what the first one wrote.

Everything else may change between runs: filters, other stateless operators, the sink, the number of
tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from epochal.checkpoint.entries import QueryMetadata
from epochal.checkpoint.layout import (
    METADATA,
    PLAN,
    STATE,
    operator_metadata_path,
    state_store_path,
)
from epochal.checkpoint.metadata_log import parse_version, storage_errors
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    StoreMetadata,
    list_operators,
    read_operator,
)
from epochal.checkpoint.spark_json import (
    JsonValue,
    list_of,
    long_of,
    parse_object,
    string_of,
    text_lines,
    to_json,
)
from epochal.continuous.plan.stages import QueryPlan, StagePlan
from epochal.errors import (
    CheckpointError,
    ConcurrentUpdateError,
    MalformedFileError,
    PlanChangedError,
)
from epochal.files import Files, join_url
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.store.compatibility import settle_families, settle_schema

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """A stateful operator as the checkpoint knows it."""

    operator_id: int
    name: str
    keys: tuple[tuple[str, ...], ...] | None
    """By input. None if unknown: Spark does not store them."""
    stores: tuple[str, ...]

    def __str__(self) -> str:
        listed = " and ".join(f"({', '.join(key)})" for key in self.keys or ())
        by = f" by {listed}" if listed else ""
        return f"{self.name}{by} in {', '.join(self.stores)}"


Shape = tuple[OperatorShape, ...]


def shape_of(plan: QueryPlan) -> Shape:
    """Return the stateful operators of a plan, in the order of their ids."""
    return tuple(
        OperatorShape(
            stage.operator_id,
            stage.stateful.name,
            tuple(stage.stateful.keys),
            tuple(store.name for store in stage.stateful.stores),
        )
        for stage in sorted(plan.stages, key=lambda stage: stage.operator_id)
    )


def check_shape(path: str, stored: Shape, asked: Shape) -> None:
    """Raise PlanChangedError unless a query with `asked` can use the state of `stored`."""
    same = (
        ours.operator_id == theirs.operator_id
        and ours.name == theirs.name
        and theirs.keys in (None, ours.keys)
        and set(ours.stores) == set(theirs.stores)
        for theirs, ours in zip(stored, asked, strict=False)
    )
    if len(stored) == len(asked) and all(same):
        return
    raise PlanChangedError(path, _describe(stored), _describe(asked))


def _describe(shape: Shape) -> str:
    if not shape:
        return "no stateful operator"
    listed = "; ".join(f"{operator.operator_id}: {operator}" for operator in shape)
    return f"stateful operators [{listed}]"


def encode_shape(shape: Shape) -> bytes:
    """Return the bytes of the plan file."""
    operators = [
        {
            "operatorId": operator.operator_id,
            "operatorName": operator.name,
            **_keys_to_json(operator.keys or ((),)),
            "stores": list(operator.stores),
        }
        for operator in shape
    ]
    return f"v{PLAN_VERSION}\n{to_json({'operators': operators})}".encode()


def _keys_to_json(keys: tuple[tuple[str, ...], ...]) -> dict[str, JsonValue]:
    """Return the key as releases before joins wrote it, or the keys of several inputs."""
    if len(keys) == 1:
        return {"key": list(keys[0])}
    return {"keys": [list(key) for key in keys]}


def decode_shape(data: bytes, path: str) -> Shape:
    """Parse a plan file."""
    lines = text_lines(data, path)
    parse_version(lines[0] if lines else "", PLAN_VERSION, path)
    fields = parse_object("\n".join(lines[1:]), path)
    return tuple(_operator(value, path) for value in list_of(fields, "operators", path))


def _operator(value: JsonValue, path: str) -> OperatorShape:
    if not isinstance(value, dict):
        raise MalformedFileError(path, "operators must be a list of objects")
    keys: tuple[tuple[str, ...], ...] = (_names(value, "key", path),)
    if "keys" in value:
        listed = list_of(value, "keys", path)
        keys = tuple(_names({"keys": key}, "keys", path) for key in listed)
    return OperatorShape(
        long_of(value, "operatorId", path),
        string_of(value, "operatorName", path),
        keys,
        _names(value, "stores", path),
    )


def _names(value: dict[str, JsonValue], key: str, path: str) -> tuple[str, ...]:
    names = list_of(value, key, path)
    if not all(isinstance(name, str) for name in names):
        raise MalformedFileError(path, f"{key} must be a list of names")
    return tuple(str(name) for name in names)


def settle_id(files: Files, has_history: bool) -> str:
    """Return the id of the query; create one if the checkpoint is new.

    `has_history` says that the logs have entries. As in Spark, a history without an id is an error:
    sinks recognize repeated epochs by the query id and would write everything twice under another.
    """
    metadata = QueryMetadata.read(files)
    if metadata is not None:
        return metadata.id
    if has_history:
        raise CheckpointError(
            f"[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] {join_url(files.url, METADATA)} is "
            f"missing although the logs have entries. Sinks recognize repeated epochs by the "
            f"query id in it and would write everything twice under a new one. Restore the file "
            f"from a backup."
        )
    mine = QueryMetadata(str(uuid4()))
    try:
        mine.write(files)
    except ConcurrentUpdateError:
        return settle_id(files, has_history)
    return mine.id


def settle_shape(files: Files, plan: QueryPlan) -> None:
    """Check the plan against the checkpoint, or store plan, schemas and operators if it is new."""
    asked = shape_of(plan)
    path = join_url(files.url, PLAN)
    stored = stored_shape(files)
    if stored is None:
        with storage_errors(path):
            try:
                files.create(PLAN, encode_shape(asked))
            except FileExistsError:
                settle_shape(files, plan)
                return
    else:
        check_shape(path, stored, asked)
    partitions = plan.state_partitions
    for stage in plan.stages:
        for store in stage.stateful.stores:
            if store.has_families:
                schemas = [schema for family in store.families for schema in family.schemas]
                name, settings = stage.stateful.name, store.properties_json
                settle_families(files, stage.operator_id, name, schemas, settings, partitions)
                continue
            family = FamilySchema(DEFAULT_FAMILY, store.key, store.value)
            # The plan has no nullability. That of a column changes no byte of a stored row.
            place = state_store_path(stage.operator_id, 0, store.name)
            settle_schema(files.at(place), family, ignore_nulls=True)
        _settle_operator(files, stage, partitions)


def is_ours(files: Files) -> bool:
    """Return whether a continuous query has used the checkpoint before."""
    with storage_errors(join_url(files.url, PLAN)):
        return files.info(PLAN) is not None


def check_empty(files: Files) -> None:
    """Refuse state without offsets, as Spark does: a new query would read it as its own."""
    if not is_ours(files) and list_operators(files):
        raise CheckpointError(
            f"[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] {join_url(files.url, STATE)} is not "
            f"empty, but there are no offsets: the query would start anew with the state of "
            f"another one. Use an empty checkpointLocation, or restore the offsets."
        )


def stored_shape(files: Files) -> Shape | None:
    """The stateful operators that a checkpoint pins, by whoever wrote it; None if it has none."""
    url = join_url(files.url, PLAN)
    try:
        with storage_errors(url):
            return decode_shape(files.read(PLAN), url)
    except FileNotFoundError:
        pass
    operators = [read_operator(files, number) for number in list_operators(files)]
    stored = [operator for operator in operators if operator is not None]
    if not stored:
        return None  # a new checkpoint, or one of a query without state
    return tuple(
        OperatorShape(
            operator.operator_id,
            operator.operator_name,
            None,
            tuple(store.name for store in operator.stores),
        )
        for operator in sorted(stored, key=lambda operator: operator.operator_id)
    )


def _settle_operator(files: Files, stage: StagePlan, partitions: int) -> None:
    if read_operator(files, stage.operator_id) is not None:
        return
    stores = tuple(
        StoreMetadata(store.name, store.prefix_columns, partitions)
        for store in stage.stateful.stores
    )
    metadata = OperatorMetadata(1, stage.operator_id, stage.stateful.name, stores)
    path = operator_metadata_path(stage.operator_id)
    with storage_errors(join_url(files.url, path)):
        try:
            files.create(path, OPERATOR_FORMAT.serialize(metadata))
        except FileExistsError:
            return
