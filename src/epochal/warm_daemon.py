"""A daemon for Python workers that has imported what their tasks need, before it forks them.

Spark starts a daemon on each executor and forks every Python worker from it. Its own daemon imports
nothing, so a new worker needs about a second of CPU for its imports before its first row. That is
most of the time of a restart after a worker was killed. With this daemon the imports happen once:

    spark.python.daemon.module=epochal.warm_daemon

It then works as `pyspark.daemon` does. It imports the modules that the environment variable
`EPOCHAL_WARM_MODULES` names, which only the engine sets. Workers for other functions have another
environment and so another daemon, which imports nothing and behaves like Spark's.

A fork copies only the thread that calls it. A lock that another thread holds stays locked in the
worker for ever. So the daemon must have one thread. Where modules start threads as they are
imported, or cannot be imported, or threads cannot be counted, Spark's own daemon runs instead.

Note: this module imports nothing of ours, because Arrow must not be imported before `main` has
switched off the thread of its allocator.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from zipfile import ZipFile

MODULES = "EPOCHAL_WARM_MODULES"
"""The environment variable with the names of the modules, separated by commas. A question mark
follows the name of one that may be missing."""

_PLAIN = "pyspark.daemon"
_TASKS = Path("/proc/self/task")
_VERSION = "pyspark/version.py"
_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*\.zip|spark-core_.*\.jar")


def main() -> None:
    """Import what the environment names, then fork workers until Spark ends the daemon."""
    names = os.environ.get(MODULES, "").split(",")
    if names != [""] and not _warm_up(names):
        _run_plain()
    from pyspark.daemon import manager

    manager()


def _warm_up(names: list[str]) -> bool:
    """Import the modules; return whether workers can be forked from this process afterwards."""
    if not _TASKS.is_dir():
        return False
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    drop_archives(sys.path)
    try:
        for name in names:
            _import(name)
    except Exception:  # noqa: BLE001  whatever it is, the worker that needs the module reports it
        traceback.print_exc()
        return False
    threads = len(list(_TASKS.iterdir()))
    if threads > 1:
        sys.stderr.write(f"epochal.warm_daemon has {threads} threads, so it cannot fork workers.\n")
        return False
    os.register_at_fork(after_in_child=_reseed)
    # What is imported stays. Without this, every collection in a worker would visit it, and copy
    # the memory that it shares with the daemon.
    gc.collect()
    gc.freeze()
    return True


def _import(name: str) -> None:
    try:
        importlib.import_module(name.removesuffix("?"))
    except ImportError:
        if not name.endswith("?"):
            raise


def drop_archives(path: list[str]) -> None:
    """Remove Spark's own archives from a module path if the same version is installed beside them.

    Spark puts its Python code in front of the path as a zip file without bytecode. Modules from it
    are compiled at each import, and each worker reads the archives' directories again.
    """
    archives = [entry for entry in path if _ARCHIVE.fullmatch(Path(entry).name)]
    zipped = next((entry for entry in archives if Path(entry).name == "pyspark.zip"), None)
    rest = [entry for entry in path if entry not in archives]
    installed = next((entry for entry in rest if Path(entry, _VERSION).is_file()), None)
    has_py4j = any(Path(entry, "py4j", "__init__.py").is_file() for entry in rest)
    if zipped is None or installed is None or not has_py4j:
        return
    with ZipFile(zipped) as files:
        if files.read(_VERSION) != Path(installed, _VERSION).read_bytes():
            return
    for entry in archives:
        path.remove(entry)
        sys.path_importer_cache.pop(entry, None)


def _reseed() -> None:
    """Give each worker random numbers of its own; Python's `random` does this itself."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def _run_plain() -> None:
    arguments = [
        _PLAIN if argument == "epochal.warm_daemon" else argument for argument in sys.orig_argv[1:]
    ]
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
