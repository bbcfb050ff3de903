"""Object stores: how a URL is parsed, and what `create` does when an answer is lost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.unit.files.http_stub import HANG_UP, Reply, Request, Script, http_stub

from epochal.errors import OptionError, StorageError
from epochal.files import objects, open_files
from epochal.files.objects import ObjectFiles, ObjectLocation, open_object_store, parse_location


@pytest.mark.parametrize(
    ("location", "parsed"),
    [
        ("s3://bucket/a/b", ObjectLocation("s3", "bucket", "a/b")),
        ("s3a://bucket", ObjectLocation("s3", "bucket", "")),
        ("s3n://bucket/a/", ObjectLocation("s3", "bucket", "a")),
        ("S3A://bucket/a", ObjectLocation("s3", "bucket", "a")),
        ("gs://bucket/a", ObjectLocation("gs", "bucket", "a")),
        ("gcs://bucket/a", ObjectLocation("gs", "bucket", "a")),
        ("s3://bucket/100%/a b?c#d+é", ObjectLocation("s3", "bucket", "100%/a b?c#d+é")),
        ("az://container/a", ObjectLocation("az", "container", "a")),
        (
            "abfss://container@account.dfs.core.windows.net/a/b",
            ObjectLocation("az", "container", "a/b", "account"),
        ),
        (
            "abfs://container@account.blob.core.windows.net/",
            ObjectLocation("az", "container", "", "account"),
        ),
        (
            "abfss://c@account.dfs.core.chinacloudapi.cn/a",
            ObjectLocation("az", "c", "a", "account", "https://account.blob.core.chinacloudapi.cn"),
        ),
    ],
)
def test_a_url_is_read_as_hadoop_writes_it(location: str, parsed: ObjectLocation) -> None:
    assert parse_location(location) == parsed


@pytest.mark.parametrize(
    "location", ["s3://", "s3:///path", "abfss://c@account/p", "abfss://@a.dfs.core.windows.net/p"]
)
def test_a_url_that_names_no_bucket_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="Write it as"):
        open_object_store(location)


@pytest.mark.parametrize(
    "location",
    [
        "s3a://bucket/a",
        "gs://bucket/a",
        "abfss://container@account.dfs.core.windows.net/a",
        "abfss://container@account.dfs.core.chinacloudapi.cn/a",
    ],
)
def test_every_cloud_opens_without_a_call_to_it(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    files = open_files(location + "/")
    assert isinstance(files, ObjectFiles)
    assert files.url == location
    assert files.at("x/y").url == f"{location}/x/y"


def test_without_obstore_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(OptionError, match=r"pip install 'epochal\[objectstore\]'"):
        open_object_store("s3://bucket/a")


class Bucket:
    """As much of S3 as a conditional put needs; `trouble` may answer first."""

    def __init__(self, *troubles: Script) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.troubles = list(troubles)
        self.requests: list[str] = []

    def answer(self, request: Request) -> Reply | None:
        self.requests.append(request.method)
        if request.method == "PUT" and self.troubles:
            return self.troubles.pop(0)(request)
        return self.serve(request)

    def serve(self, request: Request) -> Reply:
        stored = self.objects.get(request.path)
        if request.method == "PUT":
            if stored is not None and request.headers.get("if-none-match") == "*":
                return Reply(412)
            self.objects[request.path] = (request.body, request.headers[WRITER_HEADER])
            return Reply(200, headers={"ETag": '"1"'})
        if stored is None:
            return Reply(404)
        data, writer = stored
        described = {
            "ETag": '"1"',
            "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT",
            WRITER_HEADER: writer,
        }
        return Reply(200, data, described)


WRITER_HEADER = "x-amz-meta-epochalwriter"


@contextmanager
def serving(bucket: Bucket, patch: pytest.MonkeyPatch) -> Iterator[ObjectFiles]:
    with http_stub(bucket.answer) as address:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
        patch.setenv("AWS_ACCESS_KEY_ID", "access")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        yield open_object_store("s3://bucket/log")


def stored_then(bucket: Bucket, reply: Reply | None) -> Script:
    """Perform the put, then answer as if it had failed."""

    def trouble(request: Request) -> Reply | None:
        bucket.serve(request)
        return reply

    return trouble


def other_writer_then(bucket: Bucket, reply: Reply | None) -> Script:
    """Another writer puts the same bytes first, and this writer gets a wrong answer."""

    def trouble(request: Request) -> Reply | None:
        bucket.objects[request.path] = (request.body, "somebody-else")
        return reply

    return trouble


@pytest.mark.parametrize("reply", [Reply(500), Reply(503), HANG_UP])
def test_a_put_that_succeeded_without_an_answer_is_not_taken_for_another_writers(
    reply: Reply | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket()
    bucket.troubles.append(stored_then(bucket, reply))
    with serving(bucket, monkeypatch) as files:
        files.create("0", b"mine")
    assert bucket.objects["/bucket/log/0"][0] == b"mine"


@pytest.mark.parametrize("reply", [Reply(500), Reply(412), HANG_UP])
def test_another_writers_object_is_not_taken_for_this_ones_even_with_the_same_bytes(
    reply: Reply | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket()
    bucket.troubles.append(other_writer_then(bucket, reply))
    with serving(bucket, monkeypatch) as files, pytest.raises(FileExistsError) as refused:
        files.create("0", b"the same")
    assert "s3://bucket/log/0" in str(refused.value)
    assert bucket.objects["/bucket/log/0"] == (b"the same", "somebody-else")


@pytest.mark.parametrize("reply", [Reply(409), HANG_UP])
def test_a_put_that_did_not_happen_is_made_again(
    reply: Reply | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(lambda request: reply)
    with serving(bucket, monkeypatch) as files:
        files.create("0", b"mine")
    assert bucket.objects["/bucket/log/0"][0] == b"mine"
    assert bucket.requests.count("PUT") == 2


def test_a_conflict_that_never_ends_is_an_error_and_not_a_lost_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket(*[lambda request: Reply(409)] * 50)
    with serving(bucket, monkeypatch) as files, pytest.raises(StorageError, match="conflict"):
        files.create("0", b"mine")
    assert bucket.objects == {}


def test_a_refused_key_is_a_permission_error_with_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(lambda request: Reply(403, b"<Error><Code>AccessDenied</Code></Error>"))
    with serving(bucket, monkeypatch) as files, pytest.raises(PermissionError) as refused:
        files.create("0", b"mine")
    assert "s3://bucket/log/0" in str(refused.value)


@contextmanager
def slow(pause: Callable[[int], None]) -> Iterator[str]:
    """Serve 12 bytes in three parts; `pause` waits before each. Yield `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "12")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Wed, 18 Nov 2026 20:00:00 GMT")
            self.end_headers()
            for part in range(3):
                self.wfile.flush()
                pause(part)
                with suppress(OSError):  # the client has given up
                    self.wfile.write(b"data")

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("silent_from", [0, 1, None])
def test_a_store_that_sends_nothing_for_a_while_has_failed_and_a_slow_one_has_not(
    silent_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "SILENCE_SECONDS", 0.4)
    monkeypatch.setattr(objects, "RETRIES", 1)
    released = threading.Event()

    def pause(part: int) -> None:
        if silent_from is None:
            time.sleep(0.25)  # in all, longer than the silence that is allowed
        elif part >= silent_from:
            released.wait(30)

    bucket = Bucket()
    with serving(bucket, monkeypatch), slow(pause) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
        files = open_object_store("s3://bucket/log")
        began = time.monotonic()
        if silent_from is None:
            assert files.read("0") == b"datadatadata"
        else:
            with pytest.raises(StorageError):
                files.read("0")
        assert 0.4 < time.monotonic() - began < 10
        released.set()
