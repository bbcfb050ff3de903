"""What of a query may not change while its checkpoint lives, and where that is written down.

The query's id is in `metadata`, as Spark has it. Stateful operators, their keys and the names of
their stores are in `.epochal/plan`; schemas and operator metadata are where Spark keeps them, so
that its state reader, and ours, can open the state. All of it is created if absent: of two runs
that race, both are held to what the first one wrote.

What a reader would get wrong: everything else may change. Sources may be filtered differently, a
sink replaced, stateless operators added, the number of tasks be another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from epochal.checkpoint.entries import QueryMetadata
from epochal.checkpoint.layout import (
    EPOCHAL,
    METADATA,
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
from epochal.continuous.plan.stages import QueryPlan
from epochal.errors import (
    CheckpointError,
    ConcurrentUpdateError,
    MalformedFileError,
    PlanChangedError,
)
from epochal.files import Files, join_url
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.store.compatibility import settle_schema

PLAN = f"{EPOCHAL}/plan"
PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """A stateful operator as the checkpoint knows it."""

    operator_id: int
    name: str
    key: tuple[str, ...] | None
    """None where nobody wrote it down: Spark does not."""
    stores: tuple[str, ...]

    def __str__(self) -> str:
        by = "" if self.key is None else f" by ({', '.join(self.key)})"
        return f"{self.name}{by} in {', '.join(self.stores)}"


Shape = tuple[OperatorShape, ...]


def shape_of(plan: QueryPlan) -> Shape:
    """The stateful operators of a plan."""
    return tuple(
        OperatorShape(
            stage.operator_id,
            stage.stateful.name,
            tuple(stage.stateful.key),
            tuple(store.name for store in stage.stateful.stores),
        )
        for stage in plan.stages
    )


def check_shape(path: str, stored: Shape, asked: Shape) -> None:
    """PlanChangedError unless a query with `asked` may go on with what `stored` made."""
    if len(stored) == len(asked) and all(map(_same, stored, asked)):
        return
    raise PlanChangedError(path, _worded(stored), _worded(asked))


def _same(stored: OperatorShape, asked: OperatorShape) -> bool:
    return (
        stored.operator_id == asked.operator_id
        and stored.name == asked.name
        and stored.key in (None, asked.key)
        and set(stored.stores) == set(asked.stores)
    )


def _worded(shape: Shape) -> str:
    if not shape:
        return "no stateful operator"
    listed = "; ".join(f"{each.operator_id}: {each}" for each in shape)
    return f"stateful operators [{listed}]"


def encode_shape(shape: Shape) -> bytes:
    """The bytes of the plan file."""
    operators = [
        {
            "operatorId": each.operator_id,
            "operatorName": each.name,
            "key": list(each.key or ()),
            "stores": list(each.stores),
        }
        for each in shape
    ]
    return f"v{PLAN_VERSION}\n{to_json({'operators': operators})}".encode()


def decode_shape(data: bytes, path: str) -> Shape:
    """What a plan file says."""
    lines = text_lines(data, path)
    parse_version(lines[0] if lines else "", PLAN_VERSION, path)
    found = parse_object("\n".join(lines[1:]), path)
    return tuple(_operator(value, path) for value in list_of(found, "operators", path))


def _operator(value: JsonValue, path: str) -> OperatorShape:
    if not isinstance(value, dict):
        raise MalformedFileError(path, "operators must be a list of objects")
    return OperatorShape(
        long_of(value, "operatorId", path),
        string_of(value, "operatorName", path),
        _words(value, "key", path),
        _words(value, "stores", path),
    )


def _words(value: dict[str, JsonValue], key: str, path: str) -> tuple[str, ...]:
    words = list_of(value, key, path)
    if not all(isinstance(word, str) for word in words):
        raise MalformedFileError(path, f"{key} must be a list of names")
    return tuple(str(word) for word in words)


def settle_id(files: Files, has_history: bool) -> str:
    """The id of the query, made up if the checkpoint is new. `has_history`: its logs have entries.

    As in Spark, a history without an id is an error: a new id would make sinks that remember the
    old one take everything twice.
    """
    known = QueryMetadata.read(files)
    if known is not None:
        return known.id
    if has_history:
        raise CheckpointError(
            f"[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] {join_url(files.url, METADATA)} is "
            f"missing although the logs have entries: a new query id would make sinks that "
            f"remember the old one write everything twice. Restore the file from a backup."
        )
    mine = QueryMetadata(str(uuid4()))
    try:
        mine.write(files)
    except ConcurrentUpdateError:
        return settle_id(files, has_history)
    return mine.id


def settle_shape(files: Files, plan: QueryPlan) -> None:
    """Hold the plan to the checkpoint, or write down what it is: plan, schemas, operators."""
    asked = shape_of(plan)
    path = join_url(files.url, PLAN)
    stored = _stored_shape(files)
    if stored is None:
        with storage_errors(path):
            try:
                files.create(PLAN, encode_shape(asked))
            except FileExistsError:
                settle_shape(files, plan)
                return
    else:
        check_shape(path, stored, asked)
    for stage in plan.stages:
        for store in stage.stateful.stores:
            family = FamilySchema(DEFAULT_FAMILY, store.key, store.value)
            settle_schema(files.at(state_store_path(stage.operator_id, 0, store.name)), family)
    for shape in asked:
        _settle_operator(files, shape, plan.state_partitions)


def is_ours(files: Files) -> bool:
    """Whether a continuous query has used the checkpoint before."""
    with storage_errors(join_url(files.url, PLAN)):
        return files.info(PLAN) is not None


def check_empty(files: Files) -> None:
    """Refuse state without offsets: a new query would take it for its own, as Spark says too."""
    if not is_ours(files) and list_operators(files):
        raise CheckpointError(
            f"[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] {join_url(files.url, STATE)} is not "
            f"empty, yet there are no offsets: the query would be new and read the state of "
            f"another. Use an empty checkpointLocation, or restore the offsets."
        )


def _stored_shape(files: Files) -> Shape | None:
    url = join_url(files.url, PLAN)
    try:
        with storage_errors(url):
            return decode_shape(files.read(PLAN), url)
    except FileNotFoundError:
        pass
    operators = [read_operator(files, number) for number in list_operators(files)]
    found = [each for each in operators if each is not None]
    if not found:
        return None  # new, or of a query without state
    return tuple(
        OperatorShape(
            each.operator_id, each.operator_name, None, tuple(store.name for store in each.stores)
        )
        for each in found
    )


def _settle_operator(files: Files, shape: OperatorShape, partitions: int) -> None:
    if read_operator(files, shape.operator_id) is not None:
        return
    stores = tuple(StoreMetadata(name, 0, partitions) for name in shape.stores)
    metadata = OperatorMetadata(1, shape.operator_id, shape.name, stores)
    path = operator_metadata_path(shape.operator_id)
    with storage_errors(join_url(files.url, path)):
        try:
            files.create(path, OPERATOR_FORMAT.serialize(metadata))
        except FileExistsError:
            return
