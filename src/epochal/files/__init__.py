"""The storage of checkpoints: one interface to local disks, object stores and HDFS.

`contract` defines the interface and its guarantees. Each other module implements one storage.
"""

from __future__ import annotations

import re

from epochal.errors import OptionError
from epochal.files.contract import (
    UNBOUNDED,
    AtomicFile,
    Bounds,
    FileInfo,
    Files,
    Room,
    checked_path,
    join_url,
    local_path,
    scheme_of,
)

__all__ = [
    "UNBOUNDED",
    "AtomicFile",
    "Bounds",
    "FileInfo",
    "Files",
    "Room",
    "checked_path",
    "join_url",
    "local_path",
    "open_files",
    "scheme_of",
]

OBJECT_STORE_SCHEMES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "azure", "abfs", "abfss"})
_WITH_PASSWORD = re.compile(r"[^/]+://[^/@]*:(?!\d+(?:[,/]|$))[^@]*@")
"""A colon before an @ that does not start a port."""
HDFS_SCHEMES = frozenset({"hdfs", "webhdfs", "swebhdfs"})


def open_files(
    location: str, *, existing: bool = False, links: bool = False, bounds: Bounds = UNBOUNDED
) -> Files:
    """Open a local path or a `file:`, S3, GCS, Azure or HDFS URL.

    With `existing`, a local directory that is deleted later is not created again by a write. With
    `links`, symbolic links below a local directory are followed: for data, not for checkpoints.

    Note: `location` must come from a command line or from code, never from what a checkpoint says.
    Otherwise a prepared checkpoint decides which files are opened and which hosts are contacted.
    """
    scheme = scheme_of(location)
    if _WITH_PASSWORD.match(location):
        raise OptionError(
            f"The {scheme}:// address has a password in it, which would appear in messages and "
            f"logs. Remove it: credentials are taken from where the storage's own tools find them."
        )
    if scheme in ("", "file"):
        from epochal.files.local import LocalFiles

        path = local_path(location)
        return LocalFiles(path, existing=path if existing else None, links=links, bounds=bounds)
    if scheme in OBJECT_STORE_SCHEMES:
        from epochal.files.objects import open_object_store

        return open_object_store(location, bounds)
    if scheme in HDFS_SCHEMES:
        from epochal.files.webhdfs import open_webhdfs

        return open_webhdfs(location, bounds)
    schemes = ", ".join(sorted({"file", *OBJECT_STORE_SCHEMES, *HDFS_SCHEMES}))
    raise OptionError(f"{location}: the scheme {scheme!r} is not supported. Use one of {schemes}.")
