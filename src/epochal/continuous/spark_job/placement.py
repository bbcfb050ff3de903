"""RDDs with a preferred executor per partition, and data moved to it without a shuffle.

Spark takes a preferred location as text: `executor_HOST_ID` for one executor, a bare host for any
executor on it. It is only a preference. If that executor stays busy for `spark.locality.wait`, or
is gone, the task runs elsewhere. So correctness must never depend on it.
"""

from __future__ import annotations

import io
import logging
import os
import struct
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, CPickleSerializer

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("!i")
_END_OF_DATA = _LENGTH.pack(-1)


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor, as Spark's scheduler names it."""

    host: str
    executor_id: str

    @property
    def location(self) -> str:
        """As a preferred location."""
        return f"executor_{self.host}_{self.executor_id}"


def placed(
    sc: SparkContext, items: Sequence[bytes], locations: Sequence[Sequence[str]]
) -> RDD[Any]:
    """Return an RDD with one pickled item per partition, at its preferred locations."""
    return RDD(_placed(sc, items, locations), sc, CPickleSerializer())


def placed_beside(rdd: RDD[Any], locations: Sequence[Sequence[str]]) -> RDD[Any]:
    """Return the partitions of `rdd`, each computed at the preferred locations given for it.

    Each partition has one element, a list of chunks that `unpacked` turns into the rows. The whole
    partition is in the executor's memory meanwhile, as with Spark's `glom`.
    """
    sc = rdd.context
    anchors = _placed(sc, [b""] * len(locations), locations)
    beside = anchors.zip(_pickled(rdd)._jrdd.glom()).values()
    jvm: Any = sc._jvm
    return RDD(jvm.SerDeUtil.javaToPython(beside), sc, BatchedSerializer(CPickleSerializer()))


def unpacked(chunks: Sequence[bytes]) -> Iterator[Any]:
    """Return the rows of a partition's chunks, which are pickled in batches."""
    serializer = BatchedSerializer(CPickleSerializer())
    for chunk in chunks:
        frame = _LENGTH.pack(len(chunk)) + bytes(chunk) + _END_OF_DATA
        yield from serializer.load_stream(io.BytesIO(frame))


_excluded: WeakKeyDictionary[SparkContext, set[str]] = WeakKeyDictionary()


def excluded(sc: SparkContext) -> frozenset[str]:
    """Return the ids of the executors that were excluded. Ids are never used again."""
    return frozenset(_excluded.get(sc, ()))


def exclude(sc: SparkContext, executor_ids: Collection[str]) -> None:
    """Run nothing more on these executors, and ask the cluster manager to replace them.

    Spark does the same when an executor's heartbeats stay away, but only after two minutes.
    """
    gone = _excluded.setdefault(sc, set())
    fresh = [executor_id for executor_id in executor_ids if executor_id not in gone]
    gone.update(fresh)
    context: Any = sc._jsc
    for executor_id in fresh:
        logger.warning("executor %s is excluded: its tasks are silent", executor_id)
        try:
            context.sc().killAndReplaceExecutor(executor_id)
        except (Py4JError, OSError) as error:
            logger.warning("executor %s could not be replaced: %s", executor_id, error)


def executors(sc: SparkContext) -> list[Executor]:
    """Return the executors that are alive now and not excluded, without the driver."""
    gone = {"driver", *excluded(sc)}
    context: Any = sc._jsc
    listed = context.sc().statusStore().executorList(True)
    summaries = [listed.apply(index) for index in range(listed.size())]
    running = [Executor(one.hostPort().rpartition(":")[0], one.id()) for one in summaries]
    return [executor for executor in running if executor.executor_id not in gone]


def this_executor() -> Executor:
    """Return the executor of this Python worker; in local mode the driver.

    Spark does not tell a Python worker its executor. It is read from the executor's command line:
    the executor is an ancestor process of every worker.
    """
    pid = os.getpid()
    while pid > 1:
        parent, arguments = _process(pid)
        if "--executor-id" in arguments and "--hostname" in arguments:
            value = dict(pairwise(arguments))
            return Executor(value["--hostname"], value["--executor-id"])
        pid = parent
    return Executor("localhost", "driver")


def _placed(sc: SparkContext, items: Sequence[Any], locations: Sequence[Sequence[str]]) -> Any:
    jvm: Any = sc._jvm
    pickler = CPickleSerializer()
    pairs = jvm.java.util.ArrayList()
    for item, places in zip(items, locations, strict=True):
        wishes = jvm.java.util.ArrayList()
        for place in places:
            wishes.add(place)
        pairs.add(jvm.scala.Tuple2(bytearray(pickler.dumps(item)), jvm.PythonUtils.toSeq(wishes)))
    byte_arrays = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    context: Any = sc._jsc
    return context.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), byte_arrays).toJavaRDD()


def _pickled(rdd: RDD[Any]) -> RDD[Any]:
    match rdd._jrdd_deserializer:
        case BatchedSerializer(serializer=CPickleSerializer()):
            return rdd
    return rdd._reserialize(AutoBatchedSerializer(CPickleSerializer()))


def _process(pid: int) -> tuple[int, list[str]]:
    """Return the parent of a process and its command line; 0 and nothing if it is gone."""
    if not os.path.isdir("/proc/self"):
        command = ["ps", "-o", "ppid=", "-o", "command=", "-p", str(pid)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        columns = ran.stdout.split() or ["0"]
        return int(columns[0]), columns[1:]
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return 0, []
    # The process name is in parentheses and may contain anything, even parentheses. The parent's
    # pid is the second field after it.
    parent = int(status.rpartition(b")")[2].split()[1])
    return parent, arguments.decode(errors="replace").split("\0")
