"""Files in object stores: S3, Google Cloud Storage and Azure, through obstore.

`create` is a single conditional put; nothing is renamed. The answer to a put can be lost, by a
timeout or by a 5xx after which the client sent the request again. Each put therefore stores a
unique token in the object's metadata, which shows who wrote the object. `create` raises
FileExistsError only if another writer's object exists, and returns only if its own does. If the
store does not answer, it raises StorageError, and the object may or may not exist.

Directories are implied by keys. Hadoop's S3A creates empty objects named `DIR/` as directory
markers; they are not files, and listings omit them. As in Hadoop, the path of a URL is the key
without unescaping. Credentials, region and endpoint come from the environment variables of each
cloud's own tools (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS,
AZURE_STORAGE_ACCOUNT_KEY, …).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epochal.errors import OptionError, StorageError
from epochal.files import (
    SILENCE_SECONDS,
    UNBOUNDED,
    Bounds,
    BufferedAtomicFile,
    FileInfo,
    checked_path,
    join_url,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = AzureStore | GCSStore | S3Store

WRITER_KEY = "epochalwriter"
CREATE_TRIES = 5
CREATE_PAUSE_SECONDS = 0.05
DELETE_TRIES = 5
RETRIES = 6
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The parts of an object store's URL."""

    cloud: str
    """`s3`, `gs` or `az`."""

    container: str
    prefix: str
    account: str | None = None
    """Azure's storage account, if it is in the URL."""

    endpoint: str | None = None
    """Azure's blob endpoint, if the URL is of a cloud other than the public one."""


def parse_location(location: str) -> ObjectLocation:
    """Parse a URL as Hadoop and Spark write it."""
    scheme, _, rest = location.partition("://")
    authority, _, path = rest.partition("/")
    prefix = path.strip("/")
    if not authority:
        raise OptionError(f"{location}: the bucket is missing. Write it as {scheme}://BUCKET/PATH.")
    match scheme.lower():
        case "s3" | "s3a" | "s3n":
            return ObjectLocation("s3", authority, prefix)
        case "gs" | "gcs":
            return ObjectLocation("gs", authority, prefix)
    container, at, host = authority.partition("@")
    if not at:
        return ObjectLocation("az", container, prefix)
    account, dot, domain = host.partition(".")
    if not container or not account or not dot:
        raise OptionError(
            f"{location}: not a valid Azure URL. Write it as "
            f"{scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH."
        )
    suffix = domain.removeprefix("dfs.").removeprefix("blob.")
    # obstore knows the public cloud's endpoint; setting it here would override an emulator's.
    endpoint = None if suffix == "core.windows.net" else f"https://{account}.blob.{suffix}"
    return ObjectLocation("az", container, prefix, account, endpoint)


def open_object_store(location: str, bounds: Bounds = UNBOUNDED) -> ObjectFiles:
    """Open the bucket or container of `location`, rooted at its path."""
    parsed = parse_location(location)
    return ObjectFiles(_store(location, parsed), location.rstrip("/"), parsed.prefix, bounds)


def _store(location: str, parsed: ObjectLocation) -> Store:
    try:
        from obstore import exceptions, store
    except ImportError:
        raise OptionError(
            f"{location}: object stores need the package obstore, which is not installed. Run "
            f"`pip install 'epochal[objectstore]'`."
        ) from None
    # A request may transfer a whole state snapshot, so its timeout is long; that of silence, in
    # which no bytes arrive, is short.
    client: Any = {
        "allow_http": True,  # for endpoints given as http://; the clouds' own use https
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=SILENCE_SECONDS),
        "timeout": timedelta(seconds=600),
    }
    retry: Any = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=60)}
    try:
        match parsed.cloud:
            case "s3":
                return store.S3Store(parsed.container, client_options=client, retry_config=retry)
            case "gs":
                return store.GCSStore(parsed.container, client_options=client, retry_config=retry)
        config: Any = {}
        if parsed.account is not None:
            config["account_name"] = parsed.account
        if parsed.endpoint is not None:
            config["endpoint"] = parsed.endpoint
        return store.AzureStore(
            parsed.container, config=config, client_options=client, retry_config=retry
        )
    except (exceptions.BaseError, ValueError) as error:
        raise OptionError(f"{location} cannot be opened: {_first_line(error)}") from error


class ObjectFiles:
    """Files whose keys in one bucket start with a prefix."""

    def __init__(self, store: Store, url: str, prefix: str, bounds: Bounds = UNBOUNDED) -> None:
        self._store, self.url, self._prefix, self.bounds = store, url, prefix, bounds

    def __repr__(self) -> str:
        return f"ObjectFiles({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_object_store, (self.url, self.bounds)

    def at(self, path: str) -> ObjectFiles:
        return ObjectFiles(self._store, join_url(self.url, path), self._key(path), self.bounds)

    def create_atomic(self, path: str, *, overwrite: bool = False) -> BufferedAtomicFile:
        self._key(path)
        publish = self.replace if overwrite else self.create
        return BufferedAtomicFile(lambda data: publish(path, data))

    def create(self, path: str, data: bytes) -> None:
        from obstore import exceptions, put

        key, token, url = self._key(path), uuid.uuid4().hex, self._full(path)
        for left in reversed(range(CREATE_TRIES)):
            try:
                with _translate_errors(url):
                    put(
                        self._store,
                        key,
                        data,
                        attributes={WRITER_KEY: token},
                        mode="create",
                        use_multipart=False,
                    )
                return
            except (FileExistsError, StorageError) as error:
                # Neither error is reliable. The store also answers "exists" (409) when a delete
                # raced with the put, and a put whose answer was lost may have succeeded. The token
                # in the object decides.
                if isinstance(error.__cause__, exceptions.NotSupportedError):
                    raise
                writer = self._writer(key, url)
                if writer == token:
                    return
                if writer is not None:
                    raise FileExistsError(17, "File exists", url) from None
                if left == 0 and isinstance(error, StorageError):
                    raise
                time.sleep(CREATE_PAUSE_SECONDS)
        raise StorageError(
            url,
            f"the store reported a conflict {CREATE_TRIES} times, although the object does not "
            f"exist.",
        )

    def replace(self, path: str, data: bytes) -> None:
        from obstore import put

        with _translate_errors(self._full(path)):
            put(self._store, self._key(path), data, use_multipart=False)

    def read(self, path: str, *, large: bool = False) -> bytes:
        from obstore import get

        url = self._full(path)
        with _translate_errors(url):
            answer = get(self._store, self._key(path))
            size = answer.meta["size"]
        self.bounds.check(url, size, large=large)  # the body has not been read yet
        with _translate_errors(url):
            return bytes(answer.bytes())

    def info(self, path: str) -> FileInfo | None:
        key = self._key(path)
        name = key.rpartition("/")[2]
        file = self._head(path)
        if file is not None:
            return _info(name, file)
        folders, files = self._children(path)
        return FileInfo(name, True, 0, 0) if folders or files else None

    def list(self, path: str = "") -> list[FileInfo]:
        folders, files = self._children(path)
        if not folders and not files:
            self._refuse_a_file(path)
        infos = {name: FileInfo(name, True, 0, 0) for name in map(_name, folders)}
        infos |= {_name(file["path"]): _info(_name(file["path"]), file) for file in files}
        return [infos[name] for name in sorted(infos)]

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        files = sorted(self._below(path), key=lambda file: file["path"])
        if not files:
            self._refuse_a_file(path)
        start = len(self._prefix) + 1 if self._prefix else 0
        for file in files:
            below = file["path"][start:]
            # obstore lists the marker `DIR/` as `DIR`, which looks like an empty file. Only a HEAD
            # request shows whether there is an object of that name.
            if file["size"] > 0 or self._head(below) is not None:
                yield below, _info(_name(below), file)

    def make_dirs(self, path: str = "") -> None:
        self._key(path)

    def delete(self, path: str) -> None:
        if self._key(path):
            with suppress(FileNotFoundError):
                self._delete(path, [self._key(path)])

    def delete_tree(self, path: str = "") -> None:
        for left in reversed(range(DELETE_TRIES)):
            try:
                self._delete(path, [file["path"] for file in self._below(path)])
                break
            except FileNotFoundError:
                continue  # a concurrent delete removed some of it: list again
            except StorageError:
                if left == 0:
                    raise
        else:
            raise StorageError(
                self._full(path),
                f"could not be deleted in {DELETE_TRIES} tries: other processes change it too.",
            )
        self.delete(path)

    def _delete(self, path: str, keys: Sequence[str]) -> None:
        from obstore import delete

        with _translate_errors(self._full(path)):
            delete(self._store, keys)

    def _writer(self, key: str, url: str) -> str | None:
        """The token of the writer of `key`; empty if it has none, None if `key` does not exist."""
        from obstore import get

        try:
            with _translate_errors(url):
                answer = get(self._store, key, options={"head": True})
        except FileNotFoundError:
            return None
        return str(answer.attributes.get(WRITER_KEY, ""))

    def _head(self, path: str) -> ObjectMeta | None:
        from obstore import head

        if not self._key(path):
            return None
        try:
            with _translate_errors(self._full(path)):
                return head(self._store, self._key(path))
        except FileNotFoundError:
            return None

    def _children(self, path: str) -> tuple[Sequence[str], Sequence[ObjectMeta]]:
        from obstore import list_with_delimiter

        with _translate_errors(self._full(path), listing=True):
            listing = list_with_delimiter(self._store, self._key(path) or None)
        return listing["common_prefixes"], listing["objects"]

    def _below(self, path: str) -> Sequence[ObjectMeta]:
        from obstore import list as list_objects

        with _translate_errors(self._full(path), listing=True):
            pages = list_objects(self._store, self._key(path) or None, chunk_size=1000)
            return [file for page in pages for file in page]

    def _refuse_a_file(self, path: str) -> None:
        if self._head(path) is not None:
            raise NotADirectoryError(20, "Not a directory", self._full(path))

    def _key(self, path: str) -> str:
        below = checked_path(self.url, path)
        return f"{self._prefix}/{below}" if self._prefix and below else self._prefix or below

    def _full(self, path: str) -> str:
        return join_url(self.url, path)


@contextmanager
def _translate_errors(url: str, *, listing: bool = False) -> Iterator[None]:
    from obstore import exceptions

    try:
        yield
    except (FileNotFoundError, exceptions.GenericError) as error:
        # A listing does not request an object, so "not found" means that the bucket is missing.
        missing = isinstance(error, FileNotFoundError)
        if (listing and missing) or any(code in str(error) for code in _NO_BUCKET):
            raise StorageError(url, "the bucket or container does not exist.") from error
        if missing:
            raise FileNotFoundError(2, "No such file", url) from error
        raise StorageError(url, _first_line(error)) from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(17, "File exists", url) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(13, f"Not allowed: {_first_line(error)}", url) from error
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise StorageError(url, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:500]


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _info(name: str, file: ObjectMeta) -> FileInfo:
    return FileInfo(name, False, file["size"], int(file["last_modified"].timestamp() * 1000))
