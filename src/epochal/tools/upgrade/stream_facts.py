"""Reads what a query of our engine needs, and what the engine says of it. Nothing is opened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.plan.compile import offset_lines_of, sources_of
from epochal.continuous.plan.logical import Node, Stateful, StreamSource, preorder
from epochal.continuous.run.state_settings import check_state, state_conf
from epochal.continuous.run.take_over import found_in, operators_of
from epochal.errors import EpochalError
from epochal.files import Files
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.tools.upgrade.spark_facts import source_fact
from epochal.tools.upgrade.upgrade_facts import OTHER, Needs, OperatorFact, SourceFact, StoreFact


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
        tuple(_source(str(at), sources[number]) for at, number in enumerate(read)),
        operators,
        session,
        output_mode,
        ours=True,
        refused_here=_refusal(tree, files, session, is_frame=is_frame),
    )


def _refusal(tree: Node, files: Files, session: Mapping[str, str], *, is_frame: bool) -> str:
    """Why the engine refuses a query on a checkpoint before it looks at its operators."""
    found = found_in(files)
    try:
        if is_frame:
            found.check(operators_of(tree), session)
        check_state(files, state_conf(files, found.settings(session), session), tree)
    except EpochalError as error:
        return str(error)
    return ""


def _source(key: str, source: StreamSource) -> SourceFact:
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
