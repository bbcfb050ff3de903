from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from tests.unit.metrics.runs import RUN, epoch

from epochal.errors import OptionError
from epochal.metrics.prometheus import MetricsServer, serve
from epochal.metrics.query_metrics import QueryMetrics
from epochal.testing.server import free_port


def scraped(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def of(name: str) -> QueryMetrics:
    import msgspec

    metrics = QueryMetrics()
    metrics.write([msgspec.structs.replace(RUN, name=name), epoch(0)])
    return metrics


def test_queries_that_name_one_port_share_one_endpoint() -> None:
    port = free_port()
    ends = [serve(of(name).collect, port) for name in ("one", "two")]
    text = scraped(port)
    assert 'epochal_query_up{query="one"' in text
    assert 'epochal_query_up{query="two"' in text
    assert text.count("# TYPE epochal_query_up") == 1
    for end in ends:
        end()
    assert 'epochal_query_up{query="one"' in scraped(port), "the end of a query is to be seen"


def test_only_metrics_are_served() -> None:
    server = MetricsServer(0)
    try:
        for path in ("/", "/../etc/passwd", "/metricsx"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                scraped(server.port, path)
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", b"x")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=10)
    finally:
        server.close()


def test_the_endpoint_is_on_loopback_unless_told_otherwise() -> None:
    server = MetricsServer(0)
    try:
        assert server.address == ("127.0.0.1", server.port)
    finally:
        server.close()


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"127.0.0.1:{port}"):
            serve(of("late").collect, port)
