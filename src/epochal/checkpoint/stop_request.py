"""Requests to stop: a file in the checkpoint asks the run that owns it to stop.

The file `.epochal/stop/RUN` asks the run RUN. It is created if absent, so asking twice is the same
as asking once. The name is the whole request; the content only says who asked. The run looks for
its own name every few seconds, on the thread that watches the query, and stops as `query.stop()`
does: at the end of an epoch, with all state under Spark's names.

Run ids are never reused, so a request can stop no other run than the one that it names. The run
deletes the request before it releases its claim, for which whoever asked is waiting. A request that
its run did not live to see stays behind, and the next run deletes it.

Note: a file proves only that somebody asked. Whether the run has stopped, its claim tells.
"""

from __future__ import annotations

from contextlib import suppress

from epochal.checkpoint.layout import STOPS
from epochal.checkpoint.metadata_log import storage_errors
from epochal.checkpoint.spark_json import to_json
from epochal.files import Files, join_url


def request_stop(files: Files, run_id: str, *, asked_by: str, now_ms: int) -> None:
    """Ask a run to stop. A request that exists already is left as it is."""
    path = stop_path(run_id)
    content = to_json({"askedBy": asked_by, "askedMs": now_ms})
    with storage_errors(join_url(files.url, path)), suppress(FileExistsError):
        files.create(path, content.encode())


def is_stop_requested(files: Files, run_id: str) -> bool:
    """Whether a run was asked to stop. One request to the storage."""
    path = stop_path(run_id)
    with storage_errors(join_url(files.url, path)):
        return files.info(path) is not None


def forget_stop(files: Files, run_id: str) -> None:
    """Delete the request to a run that has stopped, if there is one."""
    path = stop_path(run_id)
    with storage_errors(join_url(files.url, path)):
        files.delete(path)


def forget_other_stops(files: Files, run_id: str) -> None:
    """Delete all requests to other runs than this one. They have ended, or were fenced."""
    with storage_errors(join_url(files.url, STOPS)):
        for info in files.list(STOPS):
            if info.name != run_id and not info.hidden:
                files.delete(stop_path(info.name))


def stop_path(run_id: str) -> str:
    """The file that asks a run to stop."""
    return f"{STOPS}/{run_id}"
