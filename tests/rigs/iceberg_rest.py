"""Runs a real REST catalog of Iceberg on loopback: the project's own server for tests.

Its catalog is a SQLite database, and tables are on local disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.testing.jars import classpath, find_java
from epochal.testing.server import Server, accepts, free_port

ICEBERG = "1.11.0"
JETTY = "12.1.12"
SERVER = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    "org.apache.hadoop:hadoop-client-api:3.4.3",
    "org.apache.hadoop:hadoop-client-runtime:3.4.3",
    "org.xerial:sqlite-jdbc:3.49.1.0",
    "org.slf4j:slf4j-simple:2.0.18",
)
START_SECONDS = 120


@dataclass(slots=True)
class RestCatalog:
    """A server that can be stopped and started again, with the tables it had."""

    folder: Path
    port: int
    server: Server | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The settings of its clients."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.port}"}

    def start(self) -> None:
        command = [
            *("env", f"CATALOG_REST_PORT={self.port}"),
            f"CATALOG_URI=jdbc:sqlite:{self.folder}/rest.db",
            f"CATALOG_WAREHOUSE=file://{self.folder}/warehouse",
            *(find_java(), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
            *("-cp", classpath(*SERVER), "org.apache.iceberg.rest.RESTCatalogServer"),
        ]
        self.server = Server("Iceberg's REST catalog", command, log=self.folder / "rest.log")
        self.server.wait_until(lambda: accepts("127.0.0.1", self.port), seconds=START_SECONDS)

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None


@contextmanager
def running_rest_catalog() -> Iterator[RestCatalog]:
    """Start an empty catalog. It ends with the block, and its tables are deleted."""
    with tempfile.TemporaryDirectory(prefix="epochal-iceberg-") as folder:
        catalog = RestCatalog(Path(folder), free_port())
        catalog.start()
        try:
            yield catalog
        finally:
            catalog.stop()
