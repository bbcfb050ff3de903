"""HDFS over HTTP: which NameNode gets a request, what answers mean, and that retries end."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.unit.files.http_stub import HANG_UP, Reply, Request, http_stub

from epochal.errors import LostAnswerError, OptionError, StorageError
from epochal.files import open_files, webhdfs
from epochal.files.webhdfs import WebHdfsFiles, open_webhdfs
from epochal.testing.server import free_port


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "FIRST_PAUSE_SECONDS", 0.001)
    for name in ("EPOCHAL_WEBHDFS", "HADOOP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")


def said(exception: str, message: str = "why", status: int = 403) -> Reply:
    told = {"RemoteException": {"exception": exception, "message": message}}
    return Reply(status, json.dumps(told).encode())


def status_reply(length: int = 3) -> Reply:
    found = {"pathSuffix": "", "type": "FILE", "length": length, "modificationTime": 7}
    return Reply(200, json.dumps({"FileStatus": found}).encode())


class Cluster:
    """A NameNode and a DataNode in one, files in a dictionary; `trouble` may answer first."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.address = ""
        self.trouble: Callable[[Request], Reply | None] | None = None
        self.troubled_operation = ""

    def fail_once(self, operation: str, trouble: Callable[[Request], Reply | None]) -> None:
        self.troubled_operation, self.trouble = operation, trouble

    def answer(self, request: Request) -> Reply | None:
        operation = request.query["op"]
        self.asked.append((operation, request.path.removeprefix("/webhdfs/v1")))
        if self.trouble is not None and operation == self.troubled_operation:
            trouble, self.trouble = self.trouble, None
            return trouble(request)
        return self.serve(request)

    def serve(self, request: Request) -> Reply:
        path = request.path.removeprefix("/webhdfs/v1")
        match request.query["op"]:
            case "CREATE" if "data" not in request.query:
                target = f"http://{self.address}{request.path}?op=CREATE&data=true"
                return Reply(307, headers={"Location": target})
            case "CREATE":
                self.files[path] = request.body
                return Reply(201)
            case "RENAME":
                target = request.query["destination"]
                if path not in self.files:
                    return said("FileNotFoundException", status=404)
                if target in self.files and request.query["renameoptions"] == "NONE":
                    return said("FileAlreadyExistsException")
                self.files[target] = self.files.pop(path)
                return Reply(200)
            case "DELETE":
                gone = self.files.pop(path, None)
                return Reply(200, json.dumps({"boolean": gone is not None}).encode())
            case _:
                return status_reply() if path in self.files else said("FileNotFoundException")


@contextmanager
def serving(cluster: Cluster) -> Iterator[WebHdfsFiles]:
    with http_stub(cluster.answer) as address:
        cluster.address = address
        yield open_webhdfs(f"webhdfs://{address}/log")


@pytest.mark.parametrize(
    ("location", "configured", "addresses"),
    [
        ("hdfs://nn:8020/a", "", [("nn", 9870)]),
        ("hdfs://nn/a", "", [("nn", 9870)]),
        ("hdfs://nn1:8020,nn2:8020/a", "", [("nn1", 9870), ("nn2", 9870)]),
        ("hdfs://ns/a", "nn1:50070,nn2", [("nn1", 50070), ("nn2", 9870)]),
        ("webhdfs://nn:1234/a", "other:1", [("nn", 1234)]),
        ("webhdfs://nn1:1,nn2:2/a", "", [("nn1", 1), ("nn2", 2)]),
        ("swebhdfs://nn/a", "", [("nn", 9871)]),
    ],
)
def test_a_url_leads_to_the_web_address(
    location: str,
    configured: str,
    addresses: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPOCHAL_WEBHDFS", configured)
    asked: list[tuple[str, int]] = []

    def unreachable(protocol: str, host: str, port: int) -> object:
        asked.append((host, port))
        raise AssertionError(protocol)

    monkeypatch.setattr(webhdfs, "_connection", unreachable)
    files = open_files(location)
    assert files.url == location
    for _ in addresses:
        with pytest.raises(AssertionError, match="https" if location[0] == "s" else "http"):
            files.info("x")
        files._namenodes._active += 1  # type: ignore[attr-defined]
    assert asked == addresses


@pytest.mark.parametrize("location", ["hdfs:///a", "webhdfs://nn:port/a", "hdfs://nn,/a"])
def test_a_url_without_a_host_is_rejected_with_an_explanation(location: str) -> None:
    with pytest.raises(OptionError, match="EPOCHAL_WEBHDFS"):
        open_webhdfs(location)


def test_the_user_is_named_unless_a_token_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[dict[str, str]] = []

    def answer(request: Request) -> Reply:
        queries.append(request.query)
        return status_reply()

    with http_stub(answer) as address:
        open_webhdfs(f"webhdfs://{address}/log").info("0")
        monkeypatch.setenv("HADOOP_TOKEN", "SGk+/w==")
        open_webhdfs(f"webhdfs://{address}/log").info("0")
    assert queries == [
        {"op": "GETFILESTATUS", "user.name": "ada"},
        {"op": "GETFILESTATUS", "delegation": "SGk+/w=="},
    ]


def test_a_file_is_written_aside_and_renamed() -> None:
    cluster = Cluster()
    with serving(cluster) as files:
        files.create("0", b"new")
    assert cluster.files == {"/log/0": b"new"}
    (_, temp), *_ = cluster.asked
    assert temp.startswith("/log/.0.")
    assert temp.endswith(".tmp")
    assert cluster.asked == [("CREATE", temp), ("CREATE", temp), ("RENAME", temp)]


def performed_then_gone(cluster: Cluster, request: Request) -> None:
    """Do what was asked, and give no answer."""
    cluster.serve(request)


def gone(cluster: Cluster, request: Request) -> None:
    """Give no answer to what never arrived."""


@pytest.mark.parametrize(
    ("asked", "lost", "operation"),
    [
        ("RENAME", performed_then_gone, "create"),
        ("RENAME", performed_then_gone, "replace"),
        ("RENAME", gone, "create"),
        ("CREATE", gone, "create"),
    ],
)
def test_what_was_not_answered_is_found_or_made_again(
    asked: str, lost: Callable[[Cluster, Request], None], operation: str
) -> None:
    cluster = Cluster()
    cluster.fail_once(asked, partial(lost, cluster))
    with serving(cluster) as files:
        getattr(files, operation)("0", b"mine")
    assert cluster.files == {"/log/0": b"mine"}


def test_a_rename_lost_while_another_writer_won_is_refused() -> None:
    cluster = Cluster()

    def other_first(request: Request) -> Reply | None:
        cluster.files["/log/0"] = b"theirs"
        return HANG_UP

    cluster.fail_once("RENAME", other_first)
    with serving(cluster) as files, pytest.raises(FileExistsError):
        files.create("0", b"mine")
    assert cluster.files == {"/log/0": b"theirs"}


def test_a_rename_that_never_gets_an_answer_is_a_lost_answer() -> None:
    cluster = Cluster()

    def answer(request: Request) -> Reply | None:
        return HANG_UP if request.query["op"] == "RENAME" else cluster.answer(request)

    with http_stub(answer) as address:
        cluster.address = address
        with pytest.raises(LostAnswerError, match="may or may not have been made"):
            open_webhdfs(f"webhdfs://{address}/log").create("0", b"mine")
    assert cluster.files == {}


@pytest.mark.parametrize("refusal", ["StandbyException", "RetriableException"])
def test_a_namenode_that_is_not_active_is_skipped_and_remembered(refusal: str) -> None:
    standby: list[str] = []

    def refuse(request: Request) -> Reply:
        standby.append(request.query["op"])
        return said(refusal)

    cluster = Cluster()
    with http_stub(refuse) as passive, http_stub(cluster.answer) as active:
        cluster.address = active
        files = open_webhdfs(f"webhdfs://{passive},{active}/log")
        files.create("0", b"new")
        files.delete("0")
    assert cluster.files == {}
    assert standby == ["CREATE"]


def test_a_namenode_that_is_down_is_skipped() -> None:
    cluster = Cluster()
    with http_stub(cluster.answer) as active:
        cluster.address = active
        files = open_webhdfs(f"webhdfs://127.0.0.1:{free_port()},{active}/log")
        files.create("0", b"new")
    assert cluster.files == {"/log/0": b"new"}


def test_retries_end_when_no_namenode_answers() -> None:
    port = free_port()
    files = open_webhdfs(f"webhdfs://127.0.0.1:{port}/log")
    with pytest.raises(StorageError, match=f"127.0.0.1:{port} cannot be reached") as refused:
        files.list()
    assert f"webhdfs://127.0.0.1:{port}/log" in str(refused.value)
    assert "EPOCHAL_WEBHDFS" in str(refused.value)


def test_retries_end_when_a_namenode_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(webhdfs, "RETRY_SECONDS", 0.2)
    released = threading.Event()

    def silent(request: Request) -> Reply:
        released.wait(30)
        return Reply()

    with http_stub(silent) as address:
        with pytest.raises(StorageError, match="gave no answer"):
            open_webhdfs(f"webhdfs://{address}/log").info("0")
        released.set()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (said("AccessControlException", "Permission denied: user=ada"), PermissionError),
        (said("SecurityException", "Failed to obtain user group", 401), PermissionError),
        (Reply(401, b"<html>Authentication required</html>"), PermissionError),
        (said("SafeModeException", "Name node is in safe mode"), StorageError),
        (said("QuotaExceededException", "quota"), StorageError),
        (Reply(500, b"<html>oops</html>"), StorageError),
        (Reply(404, b"not webhdfs"), StorageError),
    ],
)
def test_a_refusal_becomes_pythons_error_with_the_url(reply: Reply, kind: type[Exception]) -> None:
    with http_stub(lambda request: reply) as address:
        files = open_webhdfs(f"webhdfs://{address}/log")
        with pytest.raises(kind) as refused:
            files.info("0")
        assert f"webhdfs://{address}/log/0" in str(refused.value)


def test_a_listing_that_goes_in_circles_is_an_error() -> None:
    status = {"pathSuffix": "0", "type": "FILE", "length": 1, "modificationTime": 0}
    listing = {
        "partialListing": {"FileStatuses": {"FileStatus": [status, status]}},
        "remainingEntries": 1,
    }
    reply = Reply(200, json.dumps({"DirectoryListing": listing}).encode())
    with (
        http_stub(lambda request: reply) as address,
        pytest.raises(StorageError, match="would never end"),
    ):
        open_webhdfs(f"webhdfs://{address}/log").list()


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_redirect_from_https_to_http_is_refused_before_anything_is_sent(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        place = f"http://{address}/datanode?delegation=secret"
        return Reply(307, b"", {} if request.path == "/datanode" else {"Location": place})

    with http_stub(answer) as address:
        host, port = address.split(":")
        monkeypatch.setattr(
            webhdfs, "_connection", lambda *_: http.client.HTTPConnection(host, int(port))
        )
        files = open_webhdfs(f"swebhdfs://{address}/x")
        with pytest.raises(StorageError, match="is asked by https, but redirects to http") as error:
            files.read("a") if operation == "read" else files.create("a", b"b")
    assert "/datanode" not in asked
    assert "secret" not in str(error.value)
