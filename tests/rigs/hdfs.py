"""Runs a real HDFS on loopback: Hadoop's minicluster, a NameNode and a DataNode in one JVM."""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.testing.jars import classpath, find_java
from epochal.testing.server import Server

HADOOP = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "org.junit.jupiter:junit-jupiter-api:5.12.2",
    "org.slf4j:slf4j-simple:1.7.36",
)
START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Hdfs:
    """The addresses of a running HDFS."""

    rpc: str
    """`host:port` for Hadoop's clients: `hdfs://{rpc}/`."""

    http: str
    """`host:port` of the NameNode's web server: `webhdfs://{http}/`."""


@contextmanager
def running_hdfs() -> Iterator[Hdfs]:
    """Start an empty HDFS. It ends with the block, and its data are deleted."""
    with tempfile.TemporaryDirectory(prefix="epochal-hdfs-") as folder:
        written = Path(folder, "hdfs.xml")
        command = [
            *(find_java(), "-Xmx512m", f"-Dtest.build.data={folder}/data"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath(*HADOOP)),
            *("org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-nomr", "-format"),
            *("-datanodes", "1", "-nnport", "0", "-nnhttpport", "0"),
            *("-D", "dfs.replication=1"),
            # The cluster writes this file last, when it is ready.
            *("-writeConfig", str(written)),
        ]
        with Server("HDFS", command, log=Path(folder, "hdfs.log")) as server:
            server.wait_until(lambda: _settings(written) is not None, seconds=START_SECONDS)
            settings = _settings(written) or {}
            yield Hdfs(
                rpc=settings["fs.defaultFS"].removeprefix("hdfs://").rstrip("/"),
                http=settings["dfs.namenode.http-address"],
            )


def _settings(written: Path) -> dict[str, str] | None:
    try:
        root = ElementTree.parse(written).getroot()
    except (FileNotFoundError, ElementTree.ParseError):  # not there yet, or half written
        return None
    return {entry.findtext("name", ""): entry.findtext("value", "") for entry in root}
