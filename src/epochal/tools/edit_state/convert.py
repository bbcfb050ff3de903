"""Decides how to convert state from one provider to the other.

Operators that keep plain rows (aggregations, deduplication, joins of format 1 and 2, groups with
state, limits) keep the same rows with either provider; only the encoding around them differs. State
that needs RocksDB itself, with column families or range scans, has no HDFS-backed form. State whose
keys are split for scans is not supported. Both are refused.

From RocksDB: each store gets a snapshot file, and RocksDB's files are deleted. To RocksDB: each
store gets changelogs, one for every version from 1 on because RocksDB starts counting there. All
but the last are empty. Spark writes the first real snapshot itself.
"""

from __future__ import annotations

from epochal.checkpoint.entries import CommitEntry
from epochal.checkpoint.restart import PROVIDER
from epochal.errors import EditError
from epochal.state.files.merge import Rows
from epochal.state.store.store_format import StoreFormat
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import EditedBatch, find_edit_base, older_files, plan_batch
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read_target import StateBatch, StoreTarget, load_rows
from epochal.tools.reporting import tracked
from epochal.wording import counted

MAX_CHANGELOGS = 20_000


def plan_convert(surveyed: Survey, to: StoreFormat, *, sink: SinkSurvey | None = None) -> Plan:
    base = find_edit_base(surveyed)
    if base.settings.format == to:
        raise EditError(base.url, f"its state is already kept by the {to} provider.")
    targets = [(store, _target(base.batch, store)) for store in base.stores()]
    needed = len(targets) * base.next_version
    if to.is_database and needed > MAX_CHANGELOGS:
        raise EditError(
            base.url,
            f"RocksDB would need {needed} changelog files, one for each of {base.next_version} "
            f"versions in {len(targets)} stores; the limit is {MAX_CHANGELOGS}.",
        )
    files: dict[str, bytes] = {}
    count = 0
    for store, target in tracked(targets):
        rows = load_rows(target, store.partition)
        count += sum(len(part) for part in rows)
        unwrap = base.settings.format.versions.unwrap
        plain = [
            Rows(unwrap(part.keys, part.source), unwrap(part.values, part.source), part.source)
            for part in rows
        ]
        written = to.versions.first_files(plain, base.next_version, base.settings)
        files |= {f"{store.path}/{name}": data for name, data in written.items()}
    others = tuple(older_files(base, base.stores(), "of the old provider"))
    return plan_batch(
        base,
        EditedBatch(
            files,
            {PROVIDER: to.provider_class},
            commit=CommitEntry(next_watermark_ms=base.commit.next_watermark_ms),
            others=others,
        ),
        command="state-convert",
        summary=f"convert {counted(count, 'row')} to the {to} provider",
        arguments={"to": str(to)},
        sink=sink,
        warnings=(
            "The files of the old provider are deleted. The query cannot be rewound to before "
            "this edit; the edit can only be undone.",
        ),
    )


def _target(batch: StateBatch, store: StoreListing) -> StoreTarget:
    name = batch.operator_name(store.operator)
    families = batch.uses_join_families(store.operator)
    if families or batch.variables(store.operator) is not None:
        raise EditError(
            batch.checkpoint.url,
            f"operator {store.operator} ({name}) keeps its state in column families, which only "
            f"the RocksDB provider supports. Keep the RocksDB provider.",
        )
    target = batch.store(store.operator, store.name)
    if target.encoder.kind != "plain":
        raise EditError(
            batch.checkpoint.url,
            f"operator {store.operator} ({name}) scans by prefix, so its RocksDB keys are split in "
            f"two. Converting such keys is not supported.",
        )
    return target
