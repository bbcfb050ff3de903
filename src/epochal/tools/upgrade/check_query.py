"""Checks a query against a checkpoint: `epochal.check(query, checkpoint)`.

What a query needs is read here: of a streaming DataFrame as Spark would run it, and of one of our
engine. Spark plans the first batch of the query with a scratch directory as its checkpoint. It then
writes there what it would pin: the operators in its own numbering, and the schemas of their state.
These are read like those of any other checkpoint. No batch runs, and no source is opened. The tree
of a query of our engine is only read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from epochal.checkpoint.restart import SHUFFLE_PARTITIONS, conf_in_force
from epochal.connectors.registry import FILE_SOURCES
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.plan.compile import offset_lines_of, sources_of
from epochal.continuous.plan.logical import Node, Stateful, preorder
from epochal.continuous.run.take_over import (
    JOIN_FORMAT,
    check_state,
    found_in,
    operators_of,
    state_conf,
)
from epochal.errors import EpochalError, OptionError, UnsupportedPlanError
from epochal.files import Files, join_url, local_path, open_files, scheme_of
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.rows.types import StructType
from epochal.tools.upgrade.checkpoint_facts import read_operators, read_pins
from epochal.tools.upgrade.upgrade_findings import (
    FILE,
    KAFKA,
    NUMBER,
    OTHER,
    RATE,
    RATE_MICRO_BATCH,
    Needs,
    OperatorFact,
    SourceFact,
    StoreFact,
    UpgradeReport,
    pins_of,
)
from epochal.tools.upgrade.upgrade_rules import compare

if TYPE_CHECKING:
    from epochal.continuous.api.stream import Stream

KINDS = {"kafka": KAFKA, "rate": RATE, "rate-micro-batch": RATE_MICRO_BATCH, "socket": NUMBER}
JOIN = "symmetricHashJoin"
_NAMED = ("UserProvided", "FlowAssigned")


def check(
    query: Any,
    checkpoint: str | Files | None = None,
    *,
    before: Any = None,
    output_mode: str | None = None,
) -> UpgradeReport:
    """Say whether a query can continue from a checkpoint. Nothing is started or changed.

    `query` is a streaming DataFrame, a Stream, or the writer of one that has not been started. The
    output mode is the writer's; without a writer it is append unless `output_mode` is given.
    Without a checkpoint, `before` is the query that would have left it.
    """
    if (checkpoint is None) == (before is None):
        raise OptionError("Give either a checkpoint or the query before the change.")
    if checkpoint is None:
        return check_after(query, needs_of(before, output_mode), output_mode)
    files = open_files(checkpoint) if isinstance(checkpoint, str) else checkpoint
    if files.info("") is None:
        raise OptionError(f"There is no checkpoint {files.url}. Correct the path.")
    pins = read_pins(files)
    return compare(pins, _needs(query, pins.conf or None, files, output_mode))


def needs_of(query: Any, output_mode: str | None = None) -> Needs:
    with TemporaryDirectory(prefix="epochal-check-") as empty:
        return _needs(query, None, open_files(empty), output_mode)


def check_after(query: Any, before: Needs, output_mode: str | None = None) -> UpgradeReport:
    if before.refused:
        raise OptionError(f"The query before the change cannot run: {before.refused}")
    pins = pins_of(before)
    with TemporaryDirectory(prefix="epochal-check-") as empty:
        return compare(pins, _needs(query, pins.conf, open_files(empty), output_mode))


def _needs(
    query: Any, pinned: Mapping[str, str] | None, files: Files, output_mode: str | None
) -> Needs:
    module, name = type(query).__module__, type(query).__name__
    if module.startswith("pyspark.sql.connect"):
        raise OptionError(
            "The query is of a Spark Connect session, whose plans are on the server. Check it in a "
            "classic session: SparkSession.builder.master(...)."
        )
    match name:
        case "DataFrame":
            return needs_of_frame(query, output_mode=output_mode or "append", pinned=pinned)
        case "DataStreamWriter":
            mode = output_mode or written_mode(query)
            return needs_of_frame(query._df, output_mode=mode, pinned=pinned)
        case "DataFrameWriter" if module.startswith("epochal."):
            return _frame_needs(query._frame, files, output_mode or query._mode, pinned)
        case "StreamWriter" if module.startswith("epochal."):
            return _stream_needs(
                query.stream, files, output_mode or query.mode, query.option_texts or {}
            )
        case "Stream" if module.startswith("epochal."):
            return _stream_needs(query, files, output_mode or "append", {})
    raise OptionError(
        f"A stream or its writer can be checked, not {name}. Pass df.writeStream... before start()."
    )


def _frame_needs(df: Any, files: Files, mode: str, pinned: Mapping[str, str] | None) -> Needs:
    from epochal.continuous.catalyst.releases import release_of
    from epochal.continuous.catalyst.translation import read_plan
    from epochal.continuous.run.take_over import FRAME_KEYS, session_settings

    release, session = release_of(df.sparkSession), session_settings(df.sparkSession, FRAME_KEYS)
    try:
        plan = read_plan(df, output_mode=mode, pinned=pinned, runs_jobs=False)
    except UnsupportedPlanError as error:
        return Needs(release, (), {}, session, mode, ours=True, refused=str(error))
    return needs_of_tree(
        plan.tree,
        files,
        release=release,
        session=session,
        output_mode=mode,
        is_frame=True,
        lines=plan.occurrences,
    )


def _stream_needs(stream: Stream, files: Files, mode: str, settings: Mapping[str, str]) -> Needs:
    """What a query of our own builder needs."""
    from epochal.continuous.catalyst.releases import release_of
    from epochal.continuous.run.take_over import session_settings

    session = session_settings(stream.spark)
    partitions = {key.lower(): value for key, value in settings.items()}.get("statepartitions")
    if partitions is not None:
        session[SHUFFLE_PARTITIONS] = partitions
    return needs_of_tree(
        stream.tree,
        files,
        release=release_of(stream.spark),
        session=session,
        output_mode=mode,
        is_frame=False,
    )


def written_mode(writer: Any) -> str:
    return str(java_field(writer, "outputMode").toString()).lower()


def written_options(writer: Any) -> dict[str, str]:
    """The options of Spark's writer, with lower-case names."""
    from epochal.evaluator.spark_classes import texts_of

    options = texts_of(java_field(writer, "extraOptions"))
    return {key.lower(): value for key, value in options.items()}


def java_field(writer: Any, name: str) -> Any:
    """A private field of Spark's writer, which has no public way to read it."""
    java = writer._jwrite
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)


def needs_of_frame(df: Any, *, output_mode: str, pinned: Mapping[str, str] | None) -> Needs:
    """Read the plan of a DataFrame; `pinned` are the settings in the offset log."""
    from epochal.continuous.catalyst.releases import Planner, release_of

    spark = df.sparkSession
    analyzed = df._jdf.queryExecution().analyzed()
    session = dict(spark.conf.getAll)
    has_old_joins = pinned is not None and conf_in_force(pinned, session)[JOIN_FORMAT] == "1"
    if pinned is not None and has_old_joins:
        # Spark continues joins of format 1, but does not plan new ones.
        pinned = {**pinned, JOIN_FORMAT: "2"}
    planner = Planner(spark, output_mode=output_mode, pinned=pinned, runs_jobs=False)
    release = release_of(spark)
    refused = planner.check(analyzed) or ""
    operators: dict[int, OperatorFact] = {}
    if not refused:
        with TemporaryDirectory(prefix="epochal-check-") as scratch:
            (Path(scratch) / "offsets").mkdir()
            (Path(scratch) / "offsets" / "0").touch()
            physical = planner.lay_out_state(analyzed, Path(scratch).as_uri())
            operators = _with_keys(read_operators(open_files(scratch)), physical)
    if has_old_joins:
        operators = {number: _old_join(operator) for number, operator in operators.items()}
    return Needs(
        release=release,
        sources=sources_of_plan(analyzed, release),
        operators=operators,
        session=session,
        output_mode=output_mode,
        refused=refused,
    )


def _old_join(operator: OperatorFact) -> OperatorFact:
    """An operator, and if it is a join, with the values of format 1: they do not say `matched`."""
    if operator.name != JOIN:
        return operator

    def old(schema: FamilySchema) -> FamilySchema:
        columns = tuple(field for field in schema.value.fields if field.name != "matched")
        return replace(schema, value=StructType(columns))

    stores = dict(operator.stores)
    for name, store in operator.stores.items():
        if name.endswith("keyWithIndexToValue"):
            families = {key: old(schema) for key, schema in store.families.items()}
            stores[name] = replace(store, families=families)
    return replace(operator, stores=stores)


def _with_keys(operators: dict[int, OperatorFact], physical: Any) -> dict[int, OperatorFact]:
    """The operators, and of joins the columns of their keys, which state schemas do not name."""
    from epochal.continuous.catalyst.releases import stateful_operators
    from epochal.continuous.catalyst.spark_objects import items, simple_name

    def columns(keys: Any) -> tuple[str, ...]:
        return tuple(
            str(column.name()) for key in items(keys) for column in items(key.references().toSeq())
        )

    by_number = dict(operators)
    for operator in stateful_operators(physical):
        number = int(operator.getStateInfo().operatorId())
        if simple_name(operator) == "StreamingSymmetricHashJoinExec" and number in by_number:
            keys = (columns(operator.leftKeys()), columns(operator.rightKeys()))
            by_number[number] = replace(by_number[number], keys=keys)
    return by_number


def sources_of_plan(analyzed: Any, release: tuple[int, int]) -> tuple[SourceFact, ...]:
    """The streaming sources of an analysed plan, one for each line in Spark's offset log."""
    from epochal.continuous.catalyst.plan_steps import RELATIONS
    from epochal.continuous.catalyst.spark_objects import items, simple_name

    leaves = [item for item in items(analyzed.collectLeaves()) if simple_name(item) in RELATIONS]
    return tuple(
        replace(
            _source(leaf, number, release),
            shares=any(leaf.equals(earlier) for earlier in leaves[:number]),
        )
        for number, leaf in enumerate(leaves)
    )


def _source(relation: Any, number: int, release: tuple[int, int]) -> SourceFact:
    from epochal.continuous.catalyst.spark_objects import simple_name
    from epochal.evaluator.spark_classes import texts_of

    key = str(number)
    if release >= (4, 2):
        name = relation.sourceIdentifyingName()
        key = str(name.name()) if simple_name(name) in _NAMED else key
    if simple_name(relation) == "StreamingRelation":
        source = relation.dataSource()
        format = str(source.className())
        options = texts_of(source.options())
    else:
        format = str(relation.sourceName())
        given_options = relation.extraOptions().asCaseSensitiveMap()
        options = {str(key): str(given_options[key]) for key in given_options}
    return source_fact(key, format, options)


def source_fact(key: str, format: str, options: Mapping[str, str]) -> SourceFact:
    lower = {name.lower(): value for name, value in options.items()}
    name = format.rpartition(".")[2].lower()
    if name in FILE_SOURCES:
        places = frozenset([file_place(lower["path"])]) if "path" in lower else frozenset[str]()
        return SourceFact(key, FILE, places)
    if name == "kafka":
        topics = [part.strip() for part in lower.get("subscribe", "").split(",")]
        if "assign" in lower:
            topics = list(json.loads(lower["assign"]))
        return SourceFact(
            key,
            KAFKA,
            frozenset(filter(None, topics)),
            pattern=lower.get("subscribepattern", ""),
            fails_on_loss=lower.get("failondataloss", "true").lower() != "false",
        )
    return SourceFact(key, KINDS.get(name, OTHER))


def file_place(path: str) -> str:
    """A directory as Spark writes it into the log of a file source."""
    if scheme_of(path) in ("", "file"):
        return join_url("file://" + str(Path(local_path(path)).resolve()), "").rstrip("/")
    return path.rstrip("/")


def needs_of_tree(
    tree: Node,
    files: Files,
    *,
    release: tuple[int, int],
    session: Mapping[str, str],
    output_mode: str,
    is_frame: bool,
    lines: Sequence[int] | None = None,
) -> Needs:
    """Read the operators and sources of a tree, as our engine would pin them.

    `lines` has the source of each line in the offset log, if the tree does not say it.
    """
    operators: dict[int, OperatorFact] = {}
    for node in preorder(tree):
        if isinstance(node, Stateful):
            number, spec = node.operator_id, node.spec
            stores = {store.name: _store(store) for store in spec.stores}
            texts = [store.properties_json for store in spec.stores if store.properties_json]
            properties = json.loads(texts[0]) if texts else {}
            operators[number] = OperatorFact(number, spec.name, stores, properties, spec.keys)
    sources = sources_of(tree)
    read = offset_lines_of(tree) if lines is None else lines
    return Needs(
        release,
        tuple(
            source_fact(str(at), source.format, source.options)
            if isinstance(source.format, str)
            else SourceFact(str(at), OTHER)
            for at, source in enumerate(sources[number] for number in read)
        ),
        operators,
        session,
        output_mode,
        ours=True,
        refused_here=_refusal(tree, files, session, is_frame=is_frame),
    )


def _refusal(tree: Node, files: Files, session: Mapping[str, str], *, is_frame: bool) -> str:
    """Why the engine refuses a query on a checkpoint before it looks at its operators."""
    stored = found_in(files)
    try:
        if is_frame:
            stored.check(operators_of(tree), session)
        check_state(files, state_conf(files, stored.settings(session), session), tree)
    except EpochalError as error:
        return str(error)
    return ""


def _store(store: StoreSchema) -> StoreFact:
    if not store.has_families:
        schema = FamilySchema(DEFAULT_FAMILY, store.key, store.value)
        return StoreFact(store.name, {DEFAULT_FAMILY: schema})
    schemas = [schema for family in store.families for schema in family.schemas]
    return StoreFact(store.name, {schema.name: schema for schema in schemas})
