"""What every `Files` promises, whatever it stands on: local disk, memory, S3 or HDFS."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from multiprocessing.synchronize import Barrier

import pytest

from epochal.errors import OptionError
from epochal.files import FileInfo, Files

pytestmark = pytest.mark.timeout(900)  # the first test may fetch a server's many jars

SPECIAL_NAMES = [
    "with space",
    "100%",
    "a%20b",
    "a+b",
    "a&b=c",
    "a#b?c",
    "ünïcode-日本",
    "key=value",
    "(1)[2]{3}",
    "it's;@,~!$^",
    "__metadata",
    "-dash",
]


def names(infos: list[FileInfo]) -> list[str]:
    return [info.name for info in infos]


def paths(files: Files, path: str = "") -> list[str]:
    return [found for found, _ in files.walk(path)]


def test_creating_a_name_that_is_taken_is_refused_and_changes_nothing(files: Files) -> None:
    files.create("offsets/0", b"first")
    with pytest.raises(FileExistsError) as refused:
        files.create("offsets/0", b"second")
    assert f"{files.url}/offsets/0" in str(refused.value)
    assert files.read("offsets/0") == b"first"
    assert paths(files) == ["offsets/0"]


def test_an_atomic_file_is_not_there_until_it_is_closed(files: Files) -> None:
    out = files.create_atomic("offsets/0")
    out.write(b"one ")
    out.write(bytearray(b"two "))
    out.write(memoryview(b"three"))
    assert files.info("offsets/0") is None
    out.close()
    assert files.read("offsets/0") == b"one two three"
    assert paths(files) == ["offsets/0"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_cancelled_file_leaves_nothing_behind(files: Files, overwrite: bool) -> None:
    out = files.create_atomic("offsets/0", overwrite=overwrite)
    out.write(b"never")
    out.cancel()
    assert paths(files) == []
    files.create("offsets/0", b"later")
    assert files.read("offsets/0") == b"later"


def test_cancelling_a_replacement_leaves_the_old_content(files: Files) -> None:
    files.create("state/1.delta", b"old")
    out = files.create_atomic("state/1.delta", overwrite=True)
    out.write(b"new")
    out.cancel()
    assert files.read("state/1.delta") == b"old"
    assert paths(files) == ["state/1.delta"]


def test_cancelling_or_closing_after_close_changes_nothing(files: Files) -> None:
    out = files.create_atomic("0")
    out.write(b"kept")
    out.close()
    out.close()
    out.cancel()
    assert files.read("0") == b"kept"


def test_an_error_inside_the_block_cancels(files: Files) -> None:
    def fail_inside() -> None:
        with files.create_atomic("0") as out:
            out.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    assert paths(files) == []


def test_the_second_of_two_open_writers_is_refused_when_it_closes(files: Files) -> None:
    first, second = files.create_atomic("0"), files.create_atomic("0")
    first.write(b"first")
    second.write(b"second")
    first.close()
    with pytest.raises(FileExistsError):
        second.close()
    assert files.read("0") == b"first"
    assert paths(files) == ["0"]


def test_an_overwriting_file_replaces_on_close(files: Files) -> None:
    files.create("0", b"old and longer")
    with files.create_atomic("0", overwrite=True) as out:
        out.write(b"new")
    assert files.read("0") == b"new"
    assert paths(files) == ["0"]


def test_an_empty_file_is_a_file(files: Files) -> None:
    files.create("empty", b"")
    info = files.info("empty")
    assert info is not None
    assert (info.is_dir, info.size) == (False, 0)
    assert files.read("empty") == b""
    assert paths(files) == ["empty"]


def test_a_deleted_name_can_be_created_again(files: Files) -> None:
    files.create("0", b"first")
    files.delete("0")
    assert files.info("0") is None
    files.create("0", b"second")
    assert files.read("0") == b"second"


def test_deleting_what_is_not_there_is_silent(files: Files) -> None:
    files.delete("nothing")
    files.delete("no/such/directory")
    files.delete_tree("nothing")
    assert paths(files) == []


@pytest.mark.parametrize("path", ["0", "offsets/0"])
def test_what_is_not_there_cannot_be_read(files: Files, path: str) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        files.read(path)
    assert f"{files.url}/{path}" in str(missing.value)
    assert files.info(path) is None


# Not on S3: the server keeps objects as files, and cannot answer for a key below another.
@pytest.mark.parametrize("files", ["local", "memory", "hdfs"], indirect=True)
def test_there_is_nothing_below_a_file(files: Files) -> None:
    files.create("file", b"")
    with pytest.raises(FileNotFoundError):
        files.read("file/below")
    assert files.info("file/below") is None
    files.delete("file/below")
    assert paths(files) == ["file"]


@pytest.mark.parametrize("files", ["local", "hdfs"], indirect=True)
def test_a_name_that_a_directory_has_is_taken(files: Files) -> None:
    files.create("offsets/0", b"kept")
    with pytest.raises(FileExistsError):
        files.create("offsets", b"")
    with pytest.raises(IsADirectoryError):
        files.replace("offsets", b"")
    assert paths(files) == ["offsets/0"]


def test_a_missing_directory_lists_as_empty(files: Files) -> None:
    assert files.list() == []
    assert files.list("no/such") == []
    assert paths(files, "no/such") == []
    assert files.info("no") is None


def test_a_file_cannot_be_listed(files: Files) -> None:
    files.create("offsets", b"not a directory")
    with pytest.raises(NotADirectoryError) as refused:
        files.list("offsets")
    assert f"{files.url}/offsets" in str(refused.value)
    with pytest.raises(NotADirectoryError):
        list(files.walk("offsets"))


def test_a_directory_cannot_be_read(files: Files) -> None:
    files.create("offsets/0", b"")
    with pytest.raises((IsADirectoryError, FileNotFoundError)) as refused:
        files.read("offsets")
    assert f"{files.url}/offsets" in str(refused.value)


def test_a_listing_has_files_and_directories_by_name(files: Files) -> None:
    files.create("offsets/1", b"22")
    files.create("offsets/0", b"1")
    files.create("offsets/.0.crc", b"hidden")
    files.create("offsets/deep/er/0", b"")
    found = files.list("offsets")
    assert [(info.name, info.is_dir, info.size) for info in found] == [
        (".0.crc", False, 6),
        ("0", False, 1),
        ("1", False, 2),
        ("deep", True, 0),
    ]
    assert [info.name for info in found if info.hidden] == [".0.crc"]


def test_info_tells_files_from_directories(files: Files) -> None:
    files.create("a/b/c", b"123")
    described = {path: files.info(path) for path in ("a", "a/b", "a/b/c")}
    assert {
        path: info and (info.name, info.is_dir, info.size) for path, info in described.items()
    } == {"a": ("a", True, 0), "a/b": ("b", True, 0), "a/b/c": ("c", False, 3)}
    file = described["a/b/c"]
    assert file is not None
    assert file.modified_ms > 1_700_000_000_000


def test_names_that_start_alike_are_kept_apart(files: Files) -> None:
    for path in ("offsets/0", "offsets2/0", "offsets.bak", "off"):
        files.create(path, path.encode())
    assert names(files.list("offsets")) == ["0"]
    assert paths(files, "offsets") == ["offsets/0"]
    assert files.list("offset") == []
    assert files.info("offset") is None
    files.delete_tree("offsets")
    assert paths(files) == ["off", "offsets.bak", "offsets2/0"]


def test_walk_gives_every_file_sorted_by_path(files: Files) -> None:
    expected = ["a-1", "a.x", "a/b", "a/b.c/d", "a/b0", "a0", "b/c/d/e"]
    for path in reversed(expected):
        files.create(path, path.encode())
    walked = list(files.walk())
    assert [path for path, _ in walked] == expected
    assert [info.name for _, info in walked] == ["a-1", "a.x", "b", "d", "b0", "a0", "e"]
    assert [info.size for _, info in walked] == [len(path) for path in expected]
    assert paths(files, "a") == ["a/b", "a/b.c/d", "a/b0"]
    assert paths(files.at("a")) == ["b", "b.c/d", "b0"]


def test_delete_tree_takes_all_of_it_and_nothing_else(files: Files) -> None:
    for path in ("state/0/0/1.delta", "state/0/1/1.delta", "state/0/.x.crc", "commits/0"):
        files.create(path, b"")
    files.delete_tree("state")
    assert paths(files) == ["commits/0"]
    assert files.list("state") == []
    files.delete_tree("commits/0")
    assert paths(files) == []


def test_making_a_directory_twice_is_silent(files: Files) -> None:
    files.make_dirs("state/0")
    files.make_dirs("state/0")
    files.create("state/0/kept", b"")
    files.make_dirs("state/0")
    assert paths(files) == ["state/0/kept"]


@pytest.mark.parametrize("name", SPECIAL_NAMES)
def test_names_mean_themselves_whatever_characters_they_have(files: Files, name: str) -> None:
    files.create(f"{name}/{name}", b"1")
    files.create(f"{name}/plain", b"2")
    assert files.read(f"{name}/{name}") == b"1"
    assert names(files.list()) == [name]
    assert sorted(paths(files)) == sorted([f"{name}/{name}", f"{name}/plain"])
    with pytest.raises(FileExistsError):
        files.create(f"{name}/{name}", b"3")
    files.replace(f"{name}/{name}", b"4")
    inside = files.at(name)
    assert inside.read(name) == b"4"
    inside.delete(name)
    assert paths(files) == [f"{name}/plain"]


def test_sixteen_megabytes_go_in_and_out_whole(files: Files) -> None:
    data = bytes(range(256)) * (16 * 1024 * 1024 // 256)
    files.create("big", data)
    assert files.read("big") == data
    files.replace("big", data[::-1])
    assert files.read("big") == data[::-1]


# HDFS sends a listing in pages of 1,000; directories are names that are cheap to make there.
@pytest.mark.parametrize("files", ["local", "hdfs"], indirect=True)
def test_a_directory_of_2000_directories_lists_whole(files: Files) -> None:
    expected = sorted(str(batch) for batch in range(2000))

    def make(some: list[str]) -> None:
        for name in some:
            files.make_dirs(f"log/{name}")

    run_in_threads(4, lambda n: make(expected[n::4]))
    assert names(files.list("log")) == expected
    files.delete_tree("log")
    assert files.list("log") == []


@pytest.mark.parametrize(
    "files", ["local", "memory", "s3", pytest.param("azure", marks=pytest.mark.long)], indirect=True
)
def test_a_directory_of_2000_files_lists_whole(files: Files) -> None:
    expected = sorted(str(batch) for batch in range(2000))

    def create(some: list[str]) -> None:
        for name in some:
            files.create(f"log/{name}", b"x")

    run_in_threads(4, lambda n: create(expected[n::4]))
    assert names(files.list("log")) == expected
    assert paths(files) == [f"log/{name}" for name in expected]
    files.delete_tree("log")
    assert files.list("log") == []


def test_at_composes_like_paths(files: Files) -> None:
    below = files.at("state").at("0/1")
    assert below.url == f"{files.url}/state/0/1"
    assert not files.url.endswith("/")
    below.create("2.delta", b"x")
    assert files.read("state/0/1/2.delta") == b"x"
    assert files.at("").url == files.url
    assert names(files.at("state").list("0")) == ["1"]


@pytest.mark.parametrize("path", ["/abs", "../up", "a/../../b", "a//b", "./a", "a/"])
def test_a_path_that_leaves_the_root_or_has_two_spellings_is_refused(
    files: Files, path: str
) -> None:
    with pytest.raises(OptionError, match="not a path below"):
        files.create(path, b"")
    with pytest.raises(OptionError, match="not a path below"):
        files.read(path)


def test_files_can_be_sent_to_another_process(shared_files: Files) -> None:
    shared_files.create("0", b"there")
    opened: Files = pickle.loads(pickle.dumps(shared_files))
    assert opened.url == shared_files.url
    assert opened.read("0") == b"there"


WRITERS = 4


def payload(writer: int, turn: int) -> bytes:
    return f"writer {writer} turn {turn}\n".encode() * 500


def race(files: Files, writer: int, turns: int, start: Callable[[], object]) -> list[int]:
    """Create one name per turn against the other writers; the turns that were won."""
    won = []
    for turn in range(turns):
        start()
        try:
            files.create(f"race/{turn}", payload(writer, turn))
            won.append(turn)
        except FileExistsError:
            continue
    return won


def race_in_process(
    files: Files, writer: int, turns: int, barrier: Barrier, results: multiprocessing.Queue[object]
) -> None:
    try:
        results.put((writer, race(files, writer, turns, lambda: barrier.wait(60))))
    except BaseException as error:
        barrier.abort()
        results.put((writer, repr(error)))
        raise


def assert_one_winner_each(files: Files, turns: int, won: dict[int, list[int]]) -> None:
    winners = {turn: [w for w in won if turn in won[w]] for turn in range(turns)}
    assert {turn: found for turn, found in winners.items() if len(found) != 1} == {}
    for turn, (writer,) in winners.items():
        assert files.read(f"race/{turn}") == payload(writer, turn)
    assert paths(files) == sorted(f"race/{turn}" for turn in range(turns))


def run_in_threads(count: int, work: Callable[[int], object]) -> dict[int, object]:
    done: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda n=n: done.__setitem__(n, work(n))) for n in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == count
    return done


def test_of_racing_threads_exactly_one_creates(files: Files) -> None:
    barrier = threading.Barrier(WRITERS)
    turns = 30
    done = run_in_threads(WRITERS, lambda n: race(files, n, turns, lambda: barrier.wait(60)))
    won = {writer: turns_won for writer, turns_won in done.items() if isinstance(turns_won, list)}
    assert_one_winner_each(files, turns, won)


def test_of_racing_processes_exactly_one_creates(shared_files: Files) -> None:
    spawned = multiprocessing.get_context("spawn")
    barrier, results = spawned.Barrier(WRITERS), spawned.Queue()
    turns = 300 if shared_files.url.startswith("/") else 40
    writers = [
        spawned.Process(target=race_in_process, args=(shared_files, n, turns, barrier, results))
        for n in range(WRITERS)
    ]
    for process in writers:
        process.start()
    won = dict(results.get(timeout=240) for _ in writers)
    for process in writers:
        process.join(30)
    assert all(isinstance(turns_won, list) for turns_won in won.values()), won
    assert_one_winner_each(shared_files, turns, won)


def test_readers_see_the_old_or_the_new_content_never_a_mixture(files: Files) -> None:
    contents = [bytes([65 + n]) * 40_000 for n in range(2)]
    files.create("0", contents[0])
    stop = threading.Event()
    seen: list[bytes] = []

    def read_until_stopped() -> None:
        while not stop.is_set():
            seen.append(files.read("0"))

    reader = threading.Thread(target=read_until_stopped)
    reader.start()
    for turn in range(40):
        files.replace("0", contents[turn % 2])
    stop.set()
    reader.join()
    assert set(seen) <= set(contents)
    assert seen != []
