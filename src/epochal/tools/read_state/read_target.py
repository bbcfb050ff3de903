"""Finds what to read: the batch, its settings, the operator, its stores and their schemas.

Everything that determines how to read the bytes comes from the checkpoint itself. Codec, provider,
partitions and checksums come from the conf in the offset log of the batch that is read, never from
a session. Ids come from the commit log, and schemas from the schema files. So old batches are read
as they were written, even after the query changed.

Note: operator metadata of version 2 names its schema files by absolute paths, which are stale in a
copied checkpoint. Only the last part of these paths is used.

Spark before 3.1 wrote no schema files. The bytes of a row do not say what they are, so somebody who
knows the query has to: in Spark's DDL, such as `"user string, window struct<start timestamp, end
timestamp>"`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import (
    DEFAULT_STORE,
    JOIN_STORES,
    operator_path,
    parse_partition,
    state_schema_log_path,
    state_schema_path,
    state_store_path,
)
from epochal.checkpoint.operator_metadata import (
    PREVIEW_SCHEMA_KEY,
    OperatorMetadata,
    list_operators,
    read_operator,
)
from epochal.checkpoint.restart import (
    CODEC,
    LEGACY_DEFAULTS,
    NEW_QUERY_DEFAULTS,
    PROVIDER,
    SHUFFLE_PARTITIONS,
)
from epochal.errors import StateReadError, StateSchemaError
from epochal.files import Files, join_url
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_avro import AvroForm
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.schema_file import (
    DEFAULT_FAMILY,
    FamilySchema,
    KeyEncoder,
    parse_schema_file,
)
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.store.contract import FileSettings, Selection, StoredVersion
from epochal.state.store.store_format import FORMATS, StoreFormat
from epochal.tools.inspect.listing import list_all
from epochal.tools.inspect.pinned_settings import JOIN_FORMAT, refuse_unusable
from epochal.tools.inspect.state_listing import operators_of

_STORE = "spark.sql.streaming.stateStore."
UNSAFE_ROW, AVRO = "unsaferow", "avro"
JOIN_OPERATOR = "symmetricHashJoin"
GIVE_SCHEMAS = (
    "Spark before 3.1 wrote no schema files: give --key-schema and --value-schema, in Spark's DDL"
)
TIMED_JOIN_FAMILIES = tuple(
    f"{side}-{family}"
    for side in ("left", "right")
    for family in ("keyWithTsToValues", "tsWithKey")
)
_LONG, _FLAG = AtomicType("long"), AtomicType("boolean")
FLAGGED_JOIN_FORMAT = 2
"""From this format on, a join marks the rows that have found a match."""


@dataclass(frozen=True, slots=True)
class GivenSchemas:
    """The schema of keys, of values, or of both; None where the schema file is to be used."""

    key: StructType | None = None
    value: StructType | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def counts_of_join(self) -> GivenSchemas:
        """For the store with the number of rows per key, if these are the schemas of a side."""
        return GivenSchemas(self.key, self.key and StructType((StructField("value", _LONG),)))

    def rows_of_join(self, join_format: int) -> GivenSchemas:
        """For the store with the rows, if these are the schemas of a side of a join."""
        flags = (StructField("matched", _FLAG),) if join_format >= FLAGGED_JOIN_FORMAT else ()
        return GivenSchemas(
            self.key and StructType((*self.key.fields, StructField("index", _LONG))),
            self.value and StructType((*self.value.fields, *flags)),
        )


def given_schemas(key: str | None, value: str | None) -> GivenSchemas:
    """Parse the user's DDL; StateSchemaError if it is not valid."""
    return GivenSchemas(
        None if key is None else parse_ddl(key), None if value is None else parse_ddl(value)
    )


NOTHING_GIVEN = GivenSchemas()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings(FileSettings):
    """The facts about state that only the offset log records."""

    format: StoreFormat
    partitions: int | None
    encoding: str
    join_format: int

    @classmethod
    def from_conf(cls, conf: Mapping[str, str], source: str) -> StateSettings:
        """Read the conf of an offset log entry; missing keys take their legacy values."""
        settings = {**LEGACY_DEFAULTS, **conf}
        refuse_unusable(conf, source)
        name = settings.get(PROVIDER, NEW_QUERY_DEFAULTS[PROVIDER]).rpartition(".")[2]
        formats = {kind.provider_class.rpartition(".")[2]: kind for kind in FORMATS}
        if name not in formats:
            raise StateReadError(
                source,
                f"the state is kept by {name}; Epochal reads only {' and '.join(formats)}.",
                "UNSUPPORTED_FEATURE.STATE_STORE_PROVIDER",
            )
        partitions = settings.get(SHUFFLE_PARTITIONS)
        merges = settings[f"{_STORE}rocksdb.mergeOperatorVersion"]
        checksums = settings[f"{_STORE}rowChecksum.enabled"].lower() == "true"
        return cls(
            codec=settings[CODEC],
            form=ValueWrapper(b"," if merges == "1" else b"", checksums),
            format=formats[name],
            partitions=int(partitions) if partitions else None,
            encoding=settings[f"{_STORE}encodingFormat"].lower(),
            join_format=int(settings[JOIN_FORMAT]),
        )


@dataclass(frozen=True, slots=True)
class StateVariable:
    name: str
    kind: str
    """`ValueState`, `ListState`, `MapState` or `TimerState`."""
    has_ttl: bool


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """One store of an operator, or one column family in it, at one version."""

    files: Files
    operator_id: int
    store_name: str
    family: str | None
    version: int
    settings: StateSettings
    schema: FamilySchema
    encoder: KeyEncoder
    partitions: tuple[int, ...]
    unique_ids: tuple[str, ...]
    """One id per partition; empty unless the checkpoint uses format 2."""
    has_lists: bool = False
    """Whether a key can have several values, joined by the merge operator."""
    avro: AvroForm | None = None
    """How to read the rows, if they are stored as Avro and not as UnsafeRows."""
    has_given_schema: bool = False
    """Whether the schema is the user's, so that a row that does not fit may be sound."""

    def directory(self, partition: int) -> Files:
        return self.files.at(state_store_path(self.operator_id, partition, self.store_name))

    def stored(self, partition: int) -> StoredVersion:
        unique_id = self.unique_ids[partition] if partition < len(self.unique_ids) else ""
        return StoredVersion(self.directory(partition), self.version, unique_id, self.settings)

    def selection(self, prefix: bytes = b"") -> Selection:
        """Which rows of the stored version belong to it."""
        return Selection(self.family, self.has_lists, self.avro, prefix)


def load_rows(target: StoreTarget, partition: int, prefix: bytes = b"") -> list[Rows]:
    """The rows of one partition in their stored form.

    With a `prefix`, those of a database whose keys begin so.
    """
    versions = target.settings.format.versions
    return versions.read_rows(target.stored(partition), target.selection(prefix))


class StateBatch:
    """The state of a checkpoint as of one committed batch.

    `given` are the user's schemas, for stores without schema files.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        batch_id: int | None = None,
        given: GivenSchemas = NOTHING_GIVEN,
    ) -> None:
        self.checkpoint, self.files, self.given = checkpoint, checkpoint.files, given
        if batch_id is not None and batch_id < 0:
            self._refuse(
                f"batches start at 0, not at {batch_id}.", "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE"
            )
        newest = checkpoint.commits.latest_batch_id()
        if newest is None:
            self._refuse(
                "no batch has been committed yet, so there is no state to read.",
                "STDS_COMMITTED_BATCH_UNAVAILABLE",
            )
        self.batch_id = newest if batch_id is None else batch_id
        commit = checkpoint.commits.get(self.batch_id)
        if commit is None:
            self._refuse(
                f"batch {self.batch_id} is not committed; the newest committed batch is {newest}.",
                "STDS_COMMITTED_BATCH_UNAVAILABLE",
            )
        entry = checkpoint.offsets.get(self.batch_id)
        if entry is None:
            self._refuse(
                f"batch {self.batch_id} is not in the offset log, so the settings that its state "
                f"was written with are unknown.",
                "STDS_OFFSET_LOG_UNAVAILABLE",
            )
        if not entry.has_metadata:
            self._refuse(
                f"batch {self.batch_id} has no settings in the offset log: the release of Spark "
                f"that wrote it was too old to record them, so its state cannot be read.",
                "STDS_OFFSET_METADATA_LOG_UNAVAILABLE",
            )
        self.commit, self.offsets = commit, entry
        self.settings = StateSettings.from_conf(entry.conf, checkpoint.url)

    def with_given(self, given: GivenSchemas) -> StateBatch:
        """The same batch with other schemas from the user."""
        other = copy.copy(self)
        other.given = given
        return other

    @property
    def version(self) -> int:
        """The version of every store after this batch."""
        return self.batch_id + 1

    def operator(self, operator_id: int) -> OperatorMetadata | None:
        """The operator's metadata as of this batch; None for Spark before 4.0, which wrote none."""
        if operator_id < 0:
            self._refuse(
                f"operators start at 0, not at {operator_id}.",
                "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE",
            )
        return read_operator(self.files, operator_id, self.batch_id)

    def operator_name(self, operator_id: int) -> str | None:
        metadata = self.operator(operator_id)
        return metadata.operator_name if metadata else None

    def partitions(self, operator_id: int) -> tuple[int, ...]:
        """The partitions that have a directory, up to the number that the batch has."""
        limit = self.settings.partitions
        numbers = [
            number
            for info in self.files.list(operator_path(operator_id))
            if info.is_dir and (number := parse_partition(info.name)) is not None
        ]
        listed = sorted(number for number in numbers if limit is None or number < limit)
        none = "STDS_NO_PARTITION_DISCOVERED_IN_STATE_STORE"
        if not listed:
            self._require_operator(operator_id)
            self._refuse(f"operator {operator_id} has no partition directories.", none)
        if listed != list(range(len(listed))):
            found = f"has the partitions {listed}; some in between are missing."
            self._refuse(f"operator {operator_id} {found}", none)
        return tuple(listed)

    def schemas(self, operator_id: int, store_name: str = DEFAULT_STORE) -> dict[str, FamilySchema]:
        """The schemas of a store by column family; a store without families has `default`."""
        if self.given:
            return self._given_schemas(operator_id, store_name)
        path = self._schema_paths(operator_id, store_name)[-1]
        source = join_url(self.files.url, path)
        try:
            families = parse_schema_file(self.files.read(path), source=source)
        except FileNotFoundError:
            self._require_store(operator_id, store_name)
            self._no_schema(f"{source} does not exist. {GIVE_SCHEMAS}", operator_id, store_name)
        except StateSchemaError as error:
            self._no_schema(str(error), operator_id, store_name)
        return {family.name: family for family in families}

    def _given_schemas(self, operator_id: int, store_name: str) -> dict[str, FamilySchema]:
        metadata = self.operator(operator_id)
        if metadata is not None and metadata.version > 1:
            self._no_schema(
                "it has column families, whose schemas are always in the checkpoint. Do not give "
                "a schema",
                operator_id,
                store_name,
            )
        self._require_store(operator_id, store_name)
        key, value = self.given.key, self.given.value
        if key is None or value is None:
            recorded = self.with_given(NOTHING_GIVEN).schemas(operator_id, store_name)
            stored = recorded[DEFAULT_FAMILY]
            key, value = key or stored.key, value or stored.value
        return {DEFAULT_FAMILY: FamilySchema(DEFAULT_FAMILY, key, value)}

    def _schema_paths(self, operator_id: int, store_name: str) -> list[str]:
        """The schema files of a store, the newest last."""
        metadata = self.operator(operator_id)
        stores = [s for s in metadata.stores if s.name == store_name] if metadata else []
        if stores and PREVIEW_SCHEMA_KEY in stores[0].extra:
            self._no_schema(
                f"its metadata has {PREVIEW_SCHEMA_KEY}, as a preview of Spark 4.0.0 wrote it. No "
                f"release reads such a checkpoint: run the query to its end with that preview, "
                f"or start it with a new checkpoint",
                operator_id,
                store_name,
            )
        if not stores or not stores[0].schema_file_paths:
            return [state_schema_path(operator_id, store_name)]
        folder = state_schema_log_path(operator_id, store_name)
        return [f"{folder}/{path.rpartition('/')[2]}" for path in stores[0].schema_file_paths]

    def store(self, operator_id: int, store_name: str = DEFAULT_STORE) -> StoreTarget:
        """A store by its name. For joins of format 3 and 4 this is the name of a column family."""
        if not store_name.strip():
            self._refuse("the name of the store is empty.", "STDS_INVALID_OPTION_VALUE.IS_EMPTY")
        if self.uses_join_families(operator_id):
            return self.family(operator_id, store_name)
        schemas = self.schemas(operator_id, store_name)
        if DEFAULT_STORE not in schemas:
            self._no_schema(
                f"it has column families; name one of them: {', '.join(sorted(schemas))}",
                operator_id,
                store_name,
            )
        return self._target(operator_id, store_name, None, schemas[DEFAULT_STORE])

    def family(self, operator_id: int, family: str) -> StoreTarget:
        schemas = self.schemas(operator_id)
        if family not in schemas:
            is_join = self.operator_name(operator_id) == JOIN_OPERATOR
            self._no_schema(
                f"it has no column family {family!r}; it has {', '.join(sorted(schemas))}. Choose "
                f"one with --store" + ", or one side of the join with --side" * is_join,
                operator_id,
                family,
            )
        return self._target(operator_id, DEFAULT_STORE, family, schemas[family])

    def uses_join_families(self, operator_id: int) -> bool:
        """Whether the operator is a join that keeps its state in column families of one store."""
        metadata = self.operator(operator_id)
        if metadata is None:
            return False
        return (metadata.version, metadata.operator_name) == (2, JOIN_OPERATOR)

    def variables(self, operator_id: int) -> dict[str, StateVariable] | None:
        """The variables of a transformWithState operator, including timers; else None."""
        metadata = self.operator(operator_id)
        if metadata is None or not metadata.operator_name.startswith("transformWithState"):
            return None
        listed = json.loads(metadata.properties_json or "{}").get("stateVariables", [])
        return {
            str(item["stateName"]): StateVariable(
                str(item["stateName"]), str(item["stateVariableType"]), bool(item["ttlEnabled"])
            )
            for item in listed
        }

    def _target(
        self, operator_id: int, store_name: str, family: str | None, schema: FamilySchema
    ) -> StoreTarget:
        encoder = self._encoder(operator_id, store_name, schema)
        partitions = self.partitions(operator_id)
        return StoreTarget(
            self.files,
            operator_id,
            store_name,
            family,
            self.version,
            self.settings,
            schema,
            encoder,
            partitions,
            self._unique_ids(operator_id, store_name, partitions),
            has_lists=family in TIMED_JOIN_FAMILIES,
            avro=self._avro(operator_id, family, schema, encoder),
            has_given_schema=bool(self.given),
        )

    def _avro(
        self, operator_id: int, family: str | None, schema: FamilySchema, encoder: KeyEncoder
    ) -> AvroForm | None:
        encoding = self.settings.encoding
        if not self.settings.format.is_database or encoding == UNSAFE_ROW:
            return None
        if encoding != AVRO or family is None:
            self._refuse(
                f"its rows are encoded as {encoding}, which Epochal reads only for "
                f"transformWithState with {AVRO}; use Spark's statestore source.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        written = {schema.value_schema_id: schema.value}
        for path in self._schema_paths(operator_id, DEFAULT_STORE)[:-1]:
            try:
                data = self.files.read(path)
            except FileNotFoundError:
                continue  # a value that needs it gets an error that names the schema
            for earlier in parse_schema_file(data, source=join_url(self.files.url, path)):
                if earlier.name == family:
                    written.setdefault(earlier.value_schema_id, earlier.value)
        ids = (schema.key_schema_id, schema.value_schema_id)
        return AvroForm(schema.key, schema.value, encoder, written, *ids)

    def _encoder(self, operator_id: int, store_name: str, schema: FamilySchema) -> KeyEncoder:
        if schema.encoder is not None:
            return schema.encoder
        metadata = self.operator(operator_id)
        if metadata is None:
            # Spark before 4.0 wrote no metadata. There, only session windows scan by prefix.
            names = schema.key.names
            sessions = len(names) > 1 and names[-1] == "sessionStartTime"
            return KeyEncoder("prefix", len(names) - 1) if sessions else KeyEncoder("plain")
        columns = next((s.num_cols_prefix_key for s in metadata.stores if s.name == store_name), 0)
        return KeyEncoder("prefix", columns) if columns else KeyEncoder("plain")

    def _unique_ids(
        self, operator_id: int, store_name: str, partitions: tuple[int, ...]
    ) -> tuple[str, ...]:
        ids = (self.commit.state_unique_ids or {}).get(operator_id)
        if not ids:
            return ()
        at = JOIN_STORES.index(store_name) if store_name in JOIN_STORES else 0
        if any(n >= len(ids) or at >= len(ids[n]) for n in partitions):
            self._refuse(
                f"the commit of batch {self.batch_id} has no ids for some partitions of operator "
                f"{operator_id}.",
                "STDS_FAILED_TO_READ_OPERATOR_METADATA",
            )
        return tuple(ids[n][at] for n in partitions)

    def _require_operator(self, operator_id: int) -> None:
        there = list_operators(self.files)
        if operator_id not in there:
            names = ((operator, self.operator_name(operator)) for operator in there)
            named = [f"{operator} ({name})" if name else str(operator) for operator, name in names]
            noun = "only operator" if len(named) == 1 else "the operators"
            self._refuse(
                f"there is no operator {operator_id}. The checkpoint has "
                + (f"{noun} {', '.join(named)}." if named else "no stateful operator."),
                "STDS_FAILED_TO_READ_STATE_SCHEMA",
            )

    def store_names(self, operator_id: int) -> list[str]:
        """The stores that an operator has on disk."""
        listed = {one.operator: one.store_names for one in operators_of(list_all(self.files))}
        return listed.get(operator_id, [])

    def _require_store(self, operator_id: int, store_name: str) -> None:
        """Refuse a store that does not exist, and list those that do."""
        self._require_operator(operator_id)
        names = self.store_names(operator_id)
        if store_name not in names:
            sides = ", or one side of the join with --side" if set(names) & set(JOIN_STORES) else ""
            self._no_schema(
                f"there is no such store; the operator has {', '.join(names) or 'none'}. Choose "
                f"one with --store{sides}",
                operator_id,
                store_name,
            )

    def _no_schema(self, reason: str, operator_id: int, store_name: str) -> NoReturn:
        self._refuse(
            f"operator {operator_id}, store {store_name}: {reason}.",
            "STDS_FAILED_TO_READ_STATE_SCHEMA",
        )

    def _refuse(self, reason: str, condition: str) -> NoReturn:
        raise StateReadError(self.checkpoint.url, reason, condition)
