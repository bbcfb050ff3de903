"""Reads what a query needs: a streaming DataFrame as Spark would run it, and one of our engine.

Spark plans the first batch of the query with a scratch directory as its checkpoint. It then
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
from typing import Any

from epochal.checkpoint.restart import conf_in_force
from epochal.connectors.registry import FILE_SOURCES
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.plan.compile import offset_lines_of, sources_of
from epochal.continuous.plan.logical import Node, Stateful, StreamSource, preorder
from epochal.continuous.run.take_over import (
    JOIN_FORMAT,
    check_state,
    found_in,
    operators_of,
    state_conf,
)
from epochal.errors import EpochalError
from epochal.files import Files, join_url, local_path, open_files, scheme_of
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.rows.types import StructType
from epochal.tools.upgrade.checkpoint_facts import read_operators
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
)

KINDS = {"kafka": KAFKA, "rate": RATE, "rate-micro-batch": RATE_MICRO_BATCH, "socket": NUMBER}
JOIN = "symmetricHashJoin"
_NAMED = ("UserProvided", "FlowAssigned")


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

    return replace(
        operator,
        stores={
            name: replace(
                store, families={key: old(schema) for key, schema in store.families.items()}
            )
            if name.endswith("keyWithIndexToValue")
            else store
            for name, store in operator.stores.items()
        },
    )


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
    """A source by its format and options."""
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
    operators = {
        node.operator_id: _operator(node) for node in preorder(tree) if isinstance(node, Stateful)
    }
    sources = sources_of(tree)
    read = offset_lines_of(tree) if lines is None else lines
    return Needs(
        release,
        tuple(_stream_source(str(at), sources[number]) for at, number in enumerate(read)),
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


def _stream_source(key: str, source: StreamSource) -> SourceFact:
    if not isinstance(source.format, str):
        return SourceFact(key, OTHER)
    return source_fact(key, source.format, source.options)


def _operator(node: Stateful) -> OperatorFact:
    stores = {store.name: _store(store) for store in node.spec.stores}
    texts = [store.properties_json for store in node.spec.stores if store.properties_json]
    properties = json.loads(texts[0]) if texts else {}
    return OperatorFact(node.operator_id, node.spec.name, stores, properties, node.spec.keys)


def _store(store: StoreSchema) -> StoreFact:
    if not store.has_families:
        schema = FamilySchema(DEFAULT_FAMILY, store.key, store.value)
        return StoreFact(store.name, {DEFAULT_FAMILY: schema})
    schemas = [schema for family in store.families for schema in family.schemas]
    return StoreFact(store.name, {schema.name: schema for schema in schemas})
