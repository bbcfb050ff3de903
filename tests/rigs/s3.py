"""Runs a real S3 server on loopback: S3Proxy, which keeps its objects in files.

Its conditional put ends in a hard link, so one of two racing writers fails, as on S3. Moto's server
checks first and writes later, so sometimes both succeed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.testing.jars import classpath, find_java
from epochal.testing.server import Server, accepts, free_port

S3PROXY = "org.gaul:s3proxy:4.1.0:jar-with-dependencies"
START_SECONDS = 120
# Without this, the server logs every byte that it sends or receives.
QUIET = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class S3:
    """The endpoint and the credentials of a running S3 server."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """The environment variables for its clients."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def running_s3(bucket: str = "epochal") -> Iterator[S3]:
    """Start a server with one empty bucket. It ends with the block, and its objects go too."""
    with tempfile.TemporaryDirectory(prefix="epochal-s3-") as folder:
        port = free_port()
        s3 = S3(f"http://127.0.0.1:{port}", bucket, "access", "secret")
        Path(folder, "data", bucket).mkdir(parents=True)
        settings = Path(folder, "s3proxy.conf")
        settings.write_text(
            f"s3proxy.endpoint={s3.endpoint}\n"
            f"s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={s3.access_key}\n"
            f"s3proxy.credential={s3.secret_key}\n"
            f"jclouds.provider=filesystem\n"
            f"jclouds.filesystem.basedir={folder}/data\n",
            encoding="utf-8",
        )
        quiet = Path(folder, "logback.xml")
        quiet.write_text(QUIET, encoding="utf-8")
        command = [
            *(find_java(), "-Xmx256m", f"-Dlogback.configurationFile={quiet}"),
            *("-cp", classpath(S3PROXY)),
            *("org.gaul.s3proxy.Main", "--properties", str(settings)),
        ]
        with Server("S3Proxy", command, log=Path(folder, "s3proxy.log")) as server:
            server.wait_until(lambda: accepts("127.0.0.1", port), seconds=START_SECONDS)
            yield s3
