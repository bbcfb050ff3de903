"""Metrics in Prometheus' text format, and the endpoint of a process: `GET /metrics`, on loopback.

Queries of one process that use the same port share one endpoint. If another process holds the port,
the query fails to start, so that missing metrics are noticed at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from epochal.errors import EpochalError, OptionError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with its labels."""

    labels: Mapping[str, str]
    value: float | int
    suffix: str = ""
    """`_bucket`, `_sum` or `_count` for a histogram, else empty."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]


def merge_metrics(metrics: Iterable[Metric]) -> list[Metric]:
    """Merge metrics of the same name, as the text format requires."""
    by_name: dict[str, Metric] = {}
    for metric in metrics:
        earlier = by_name.get(metric.name)
        samples = [*earlier.samples, *metric.samples] if earlier else metric.samples
        by_name[metric.name] = Metric(metric.name, metric.kind, metric.help, samples)
    return list(by_name.values())


def text_of(metrics: Iterable[Metric]) -> str:
    """Format metrics as text; those without samples are omitted."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in metric.samples:
            labels = ",".join(f'{k}="{_escape(v)}"' for k, v in sample.labels.items())
            name = metric.name + sample.suffix
            lines.append(f"{name}{f'{{{labels}}}' if labels else ''} {sample.value}")
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


logger = logging.getLogger(__name__)

Collect = Callable[[], list[Metric]]
LOOPBACK = "127.0.0.1"
KEPT_ENDED = 10
"""Ended queries that are still exported, so that a scrape can see that they ended."""


class MetricsServer:
    """Answers scrapes with the metrics of its collectors."""

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        self._collectors: list[Collect] = []
        self._ended: list[Collect] = []
        self._lock = threading.Lock()
        try:
            self._http = _Server((host, port), scrape_handler(self.text, ("/metrics",)))
        except OSError as error:
            raise OptionError(
                f"Metrics cannot be served at {host}:{port}: {error.strerror}. Use another "
                f"metricsPort, or stop the process that listens there."
            ) from None
        bound, number = self._http.server_address[:2]
        self.address = str(bound), int(number)
        """Where it listens; the actual port, also if port 0 was requested."""
        self.port = self.address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, name=f"epochal-metrics-{self.port}", daemon=True
        )
        self._thread.start()
        logger.info("metrics at http://%s:%d/metrics", host, self.port)

    def add(self, collect: Collect) -> None:
        with self._lock:
            self._collectors.append(collect)

    def end(self, collect: Collect) -> None:
        """Mark a collector as ended; the last KEPT_ENDED of them are still exported."""
        with self._lock:
            self._collectors = [collector for collector in self._collectors if collector != collect]
            self._ended = [*self._ended, collect][-KEPT_ENDED:]

    def text(self) -> str:
        with self._lock:
            collectors = [*self._ended, *self._collectors]
        return text_of(merge_metrics(metric for collect in collectors for metric in collect()))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


_servers: dict[tuple[str, int], MetricsServer] = {}
_servers_lock = threading.Lock()


def serve(collect: Collect, port: int, host: str = LOOPBACK) -> Callable[[], None]:
    """Serve metrics at a port that several queries may share; call the result when a query ends.

    The endpoint stays until the process ends, so that a scrape can still see the end of the query.
    """
    with _servers_lock:
        server = _servers.get((host, port)) if port else None
        if server is None:
            server = MetricsServer(port, host)
            _servers[host, server.port] = server
        server.add(collect)
    return partial(server.end, collect)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def scrape_handler(text: Callable[[], str], paths: Collection[str]) -> type[BaseHTTPRequestHandler]:
    """Make a handler that answers these paths with `text()`, or with 503 if it raises an error."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "epochal"
        sys_version = ""
        timeout = 10

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in paths:
                self.send_error(404)
                return
            try:
                body = text().encode()
            except (EpochalError, OSError) as error:
                self.send_error(503, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            logger.debug(format, *args)

    return Handler
