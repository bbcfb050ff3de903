"""Requires the caller to name the output directory of a query's file sink, or to say there is none.

An edit that adds, removes or renumbers batches must change the sink's log too: a file sink skips
every batch up to the latest in its log, and its log must have every batch. Spark does not record
where a query writes. Some of our own records do: the manifests of a
continuous query list the files that it wrote, and the journal has the sinks of earlier edits. What
they say is offered to the caller, who decides. It is never opened: whoever prepared the checkpoint
would choose the directory whose files are deleted, or the host that is contacted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from epochal.checkpoint.file_log import SinkFileStatus
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.connectors.staging.epoch_marker import sink_messages
from epochal.epoch.manifest import manifest_of
from epochal.errors import EditError, EpochalError
from epochal.files import Files, join_url
from epochal.tools.edit.edit_file_log import SinkSurvey, survey_sink
from epochal.tools.edit.edit_plan import SINK
from epochal.tools.edit.survey import Survey
from epochal.tools.inspect.edit_status import JournalState, journal_entries

FILE_SINK = "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink"

_STATUSES = msgspec.json.Decoder(list[SinkFileStatus])


@dataclass(frozen=True, slots=True)
class NamedSink:
    """What the caller says of the query's file sink."""

    place: Files | None = None
    """Its output directory."""

    is_absent: bool = False
    """Whether the caller says that there is none to change."""


def find_sink(surveyed: Survey, named: NamedSink) -> SinkSurvey | None:
    """Read the file sink that the caller has named; EditError if the caller says nothing."""
    if named.place is not None:
        return survey_sink(named.place, surveyed.url)
    if not named.is_absent:
        raise EditError(
            surveyed.url,
            f"{_evidence(surveyed)}. The log of a file sink must change together with the "
            f"checkpoint: pass the output directory with --sink, or --no-file-sink if the query "
            f"writes to no file sink.",
        )
    return None


def _evidence(surveyed: Survey) -> str:
    """What the checkpoint says of a file sink."""
    for batch_id in sorted(surveyed.offsets, reverse=True):
        for path in _listed(surveyed, batch_id):
            return f"{OFFSETS}/{batch_id} lists files in {shlex.quote(_above(path))}"
    for url in _edited(surveyed):
        return f"an earlier edit changed the file sink in {shlex.quote(url)}"
    committed = surveyed.listing.commits.latest
    if committed is not None and _writes_files(surveyed, committed):
        return f"{COMMITS}/{committed} says that the query writes to a file sink, but not where"
    return "a checkpoint does not say where its query writes"


def _above(path: str) -> str:
    """The directory of a data file, without the directories of partition columns."""
    *folders, _ = path.split("/")
    while folders and "=" in folders[-1]:
        folders.pop()
    return "/".join(folders)


def _writes_files(surveyed: Survey, committed: int) -> bool:
    commit = surveyed.commits.get(committed)
    sink = commit.active_sink if commit is not None else None
    return sink is not None and sink.provider_name == FILE_SINK


def _listed(surveyed: Survey, batch_id: int) -> list[str]:
    """The paths of the files that a batch of a continuous query wrote; empty for other sinks."""
    url = join_url(surveyed.url, f"{OFFSETS}/{batch_id}")
    try:
        manifest = manifest_of(surveyed.offsets[batch_id], url, batch_id)
        messages = sink_messages(manifest.messages) if manifest is not None else ()
        return [status.path for message in messages for status in _STATUSES.decode(message)]
    except (EpochalError, msgspec.MsgspecError, RecursionError):
        return []


def _edited(surveyed: Survey) -> Iterator[str]:
    """Yield the sinks that earlier edits changed, newest first."""
    for entry in reversed(journal_entries(surveyed.files)):
        if entry.state is JournalState.DONE and SINK in entry.arguments:
            yield entry.arguments[SINK]
