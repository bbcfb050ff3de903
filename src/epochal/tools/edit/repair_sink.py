"""Repairs the log of a file sink: writes the entries that a batch added by an edit never got.

A batch that an edit added wrote no files, so its entry is empty, or, if it is due for a compaction,
repeats the entries before it. The entry of any other batch lists files that are recorded nowhere
else. Such an entry is not invented: the query must go back and write the batch again.

Note: an edit copies the timestamp of the batch before. Spark takes a new one for each batch.
"""

from __future__ import annotations

from epochal.checkpoint.file_log import SinkFileStatus, is_compaction_batch
from epochal.checkpoint.layout import COMPACT_SUFFIX, SINK_LOG
from epochal.errors import EpochalError
from epochal.tools.edit.edit_file_log import (
    SINK_FORMAT,
    SinkSurvey,
    obsolete_compacts,
    readable_entries,
)
from epochal.tools.edit.repair_draft import RepairDraft
from epochal.tools.verify.check_logs import added_by_edit


def mend_sink_log(draft: RepairDraft, sink: SinkSurvey) -> str | None:
    """Write the batches that are missing, or have the wrong name for the compaction interval."""
    if hiding := obsolete_compacts({name: readable_entries(sink, name) for name in sink.names}):
        for hidden in hiding:
            draft.remove(f"{SINK_LOG}/{hidden}", "a later compact file has its files")
        return None
    names = {batch_id: name for name, batch_id in sink.names.items()}
    compacts = [each for each, name in names.items() if name.endswith(COMPACT_SUFFIX)]
    committed = max(draft.surveyed.commits, default=-1)
    first, last = max(compacts, default=0), max([*names, committed])
    # The first is enough: a name in the directory may claim any number, up to 2**63.
    lost = next(
        (
            batch_id
            for batch_id in range(first, last + 1)
            if batch_id not in names and not added_by_edit(draft.surveyed.offsets, batch_id)
        ),
        None,
    )
    if lost is not None:
        return (
            f"batch {lost} was not added by an edit, and the files that it wrote are recorded "
            f"nowhere else: restore {SINK_LOG}/{lost} from a backup, or run `epochal "
            f"checkpoint rewind CHECKPOINT --to-batch {lost - 1} --sink OUTPUT`"
        )
    for other, batch_id in sink.names.items():
        if other != (wanted := sink.log.path_of(batch_id)) and wanted in sink.names:
            draft.remove(f"{SINK_LOG}/{other}", f"there is {wanted}")
            names[batch_id] = wanted
    live: list[SinkFileStatus] = []
    for batch_id in range(first, last + 1):
        name = names.get(batch_id)
        try:
            found = list(_entries(sink, name)) if name is not None else []
        except (EpochalError, OSError):
            return f"{SINK_LOG}/{name} cannot be read: repair that first"
        if name is not None and name.endswith(COMPACT_SUFFIX):
            known = set(live)
            found = [entry for entry in found if entry not in known]
        live += found
        _settle(draft, sink, batch_id, name, found, live)
    return None


def _settle(
    draft: RepairDraft,
    sink: SinkSurvey,
    batch_id: int,
    name: str | None,
    own: list[SinkFileStatus],
    live: list[SinkFileStatus],
) -> None:
    """Write a batch under the name that the interval requires, unless it is there."""
    wanted = sink.log.path_of(batch_id)
    if name == wanted:
        return
    due = is_compaction_batch(batch_id, sink.log.compact_interval)
    content = SINK_FORMAT.serialize(live if due else own)
    why = "the batch was added by an edit" if name is None else f"was named {name}"
    draft.add(sink.tree.write(f"{SINK_LOG}/{wanted}", content, why))
    if name is not None:
        draft.remove(f"{SINK_LOG}/{name}", f"replaced by {wanted}")


def _entries(sink: SinkSurvey, name: str) -> tuple[SinkFileStatus, ...]:
    path = f"{SINK_LOG}/{name}"
    return SINK_FORMAT.deserialize(sink.files.read(path), path)
