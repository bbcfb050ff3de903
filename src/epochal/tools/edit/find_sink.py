"""Finds the output directory of a query's file sink, as far as the checkpoint tells. It only reads.

Spark does not record where a query writes. Two other records may tell: the manifests of a
continuous query list the files that it wrote, and the journal names the sinks of earlier edits.
Where the commit log names a file sink without its path, the caller must give the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from epochal.checkpoint.file_log import SinkFileStatus
from epochal.checkpoint.layout import COMMITS, OFFSETS, SINK_LOG
from epochal.connectors.staging.letter_envelope import sink_messages
from epochal.epoch.manifest import manifest_of
from epochal.errors import EditError, EpochalError
from epochal.files import Files, join_url, open_files
from epochal.tools.edit.edit_file_log import SINK, SinkSurvey, survey_sink
from epochal.tools.edit.survey import Survey
from epochal.tools.inspect.edit_status import JournalState, journal_entries

FILE_SINK = "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink"

MAX_LEVELS = 8
"""How many directories above a data file are searched for the sink's log: one per partition column.
"""

_STATUSES = msgspec.json.Decoder(list[SinkFileStatus])


def find_sink(
    surveyed: Survey,
    location: str | None,
    open_root: Callable[[str], Files] = open_files,
    *,
    required: bool = True,
) -> SinkSurvey | None:
    """Read the sink at `location`, or the one that the checkpoint's own records lead to.

    A sink that was not named is used only if its log has every committed batch: otherwise the
    record is of another time. With `required`, EditError if the query is known to have a file
    sink, but not where.
    """
    if location is not None:
        return survey_sink(open_root(location))
    committed = surveyed.listing.commits.latest
    for url in dict.fromkeys((*_written(surveyed, open_root), *_edited(surveyed))):
        try:
            sink = survey_sink(open_root(url))
        except (EpochalError, OSError):
            continue
        if committed is None or (sink.latest is not None and sink.latest >= committed):
            return sink
    if required and committed is not None and _writes_files(surveyed, committed):
        raise EditError(
            surveyed.url,
            f"{COMMITS}/{committed} says that the query writes to a file sink, but not where. The "
            f"sink's log must change together with the checkpoint. Pass the output directory with "
            f"--sink.",
        )
    return None


def _writes_files(surveyed: Survey, committed: int) -> bool:
    commit = surveyed.commits.get(committed)
    sink = commit.active_sink if commit is not None else None
    return sink is not None and sink.provider_name == FILE_SINK


def _written(surveyed: Survey, open_root: Callable[[str], Files]) -> Iterator[str]:
    """Yield the directory with a sink's log above the files that the newest manifest lists."""
    for batch_id in sorted(surveyed.offsets, reverse=True):
        for path in _listed(surveyed, batch_id):
            folder = path
            for _ in range(MAX_LEVELS):
                folder = folder.rpartition("/")[0]
                if not folder.rpartition("/")[2]:
                    break
                if open_root(folder).info(SINK_LOG) is not None:
                    yield folder
                    return


def _listed(surveyed: Survey, batch_id: int) -> list[str]:
    """The paths of the files that a batch of a continuous query wrote; empty for other sinks."""
    url = join_url(surveyed.url, f"{OFFSETS}/{batch_id}")
    try:
        manifest = manifest_of(surveyed.offsets[batch_id], url, batch_id)
        messages = sink_messages(manifest.messages) if manifest is not None else ()
        return [status.path for message in messages for status in _STATUSES.decode(message)]
    except (EpochalError, msgspec.MsgspecError):
        return []


def _edited(surveyed: Survey) -> Iterator[str]:
    """Yield the sinks that earlier edits changed, newest first."""
    for entry in reversed(journal_entries(surveyed.files)):
        if entry.state is JournalState.DONE and SINK in entry.arguments:
            yield entry.arguments[SINK]
