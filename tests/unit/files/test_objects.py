"""Object stores: how a URL is parsed, and what `create` does when an answer is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.files.http_stub import HANG_UP, Reply, Request, Script, http_stub

from epochal.errors import OptionError, StorageError
from epochal.files import open_files
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
