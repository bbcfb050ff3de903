"""Histories of a query under test: drawn at random, told in words, run and shortened.

A history is a list of actions: feed rows, feed some again, end an epoch, wait, disturb messages,
crash and restart. The calm history of the same rows feeds them all and runs.

A user's code sees the time of the driver meanwhile (`seen_time`), so that a pipeline that reads the
clock is found. `time.time` and `time.time_ns` are replaced everywhere, `datetime` and `date` in the
modules of the user and in the globals of the pipeline's functions. Modules of Python and of
installed packages keep theirs, because much of them depends on these classes being the real ones.

Note: an import of `datetime` inside a function is not seen.
"""

from __future__ import annotations

import datetime as real
import random
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from epochal.testing.driver.rows import OutputRows, difference

if TYPE_CHECKING:
    from epochal.testing.driver.query_driver import Driver


MAX_ROWS_AT_ONCE = 3

CrashStep: TypeAlias = Literal["cut", "state", "prepare", "log", "commit", "ack"]
"""The steps of an epoch at which a test can stop a query, in the order in which they are taken. Up
to `log` a restart reads the epoch's rows again; after it the epoch is finished."""

Disturbance: TypeAlias = Literal["lost", "late", "doubled"]
"""What happens to messages between the processes of the query."""

DELAYS_MS = {"1 s": 1_000, "1 min": 60_000, "1 h": 3_600_000, "1 day": 86_400_000}


@dataclass(frozen=True, slots=True)
class Feed:
    """Feed rows to a source. `places` says where they are among all rows of the source."""

    source: str
    rows: tuple[Any, ...]
    places: tuple[int, ...]
    again: bool = False
    """Whether the source delivers rows that it has delivered before."""

    def __str__(self) -> str:
        return f"feed {self.source}{' again' * self.again}: {list(self.rows)}"


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """End an epoch and commit it."""

    def __str__(self) -> str:
        return "epoch"


@dataclass(frozen=True, slots=True)
class Wait:
    """Let time pass."""

    time: str

    def __str__(self) -> str:
        return f"wait {self.time}"


@dataclass(frozen=True, slots=True)
class Disturb:
    """Lose, delay or double messages between the query's processes until an epoch ends."""

    how: Disturbance

    def __str__(self) -> str:
        return f"messages of the next epoch are {self.how}"


@dataclass(frozen=True, slots=True)
class CrashAndRestart:
    """Kill everything just before a step of the next epoch, and start again."""

    step: CrashStep

    def __str__(self) -> str:
        return f"crash at {self.step}, restart"


Action: TypeAlias = Feed | EndEpoch | Wait | Disturb | CrashAndRestart
History: TypeAlias = tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What may happen in a history, besides that rows come in pieces and epochs end anywhere."""

    steps: tuple[CrashStep, ...] = ()
    """Where it may crash."""
    duplicates: bool = False
    late_rows: int = 0
    """How many rows later than in the feed a row may come."""
    delays: bool = False
    disturbances: bool = True


def draw_history(
    chance: random.Random, feed: Mapping[str, Sequence[Any]], trouble: Trouble
) -> History:
    lateness = trouble.late_rows + 1
    left = {  # places of rows in the order of their arrival
        source: sorted(range(len(rows)), key=lambda at: at + chance.random() * lateness)
        for source, rows in feed.items()
        if rows
    }
    actions: list[Action] = []
    while left:
        roll = chance.random()
        if roll < 0.45:
            source = chance.choice(sorted(left))
            places = tuple(left[source][: chance.randint(1, MAX_ROWS_AT_ONCE)])
            rows = tuple(feed[source][place] for place in places)
            actions.append(Feed(source, rows, places))
            left[source] = left[source][len(places) :]
            if not left[source]:
                del left[source]
        elif roll < 0.65:
            actions.append(EndEpoch())
        else:
            actions += _trouble(chance, actions, trouble)
    actions += _trouble(chance, actions, trouble)  # the last rows deserve some too
    return tuple(actions)


def _trouble(chance: random.Random, before: Sequence[Action], trouble: Trouble) -> list[Action]:
    fed = [action for action in before if isinstance(action, Feed)]
    makers: list[Callable[[], Action]] = []
    if trouble.steps:
        makers += 2 * [lambda: CrashAndRestart(chance.choice(trouble.steps))]
    if trouble.duplicates and fed:
        makers.append(lambda: replace(chance.choice(fed), again=True))
    if trouble.delays:
        makers.append(lambda: Wait(chance.choice(list(DELAYS_MS))))
    if trouble.disturbances:
        makers.append(lambda: Disturb(chance.choice(get_args(Disturbance))))
    return [chance.choice(makers)()] if makers else []


def calm(history: History) -> History:
    """Return the history of the same rows in which nothing else happens."""
    rows: dict[str, dict[int, Any]] = {}
    for action in history:
        if isinstance(action, Feed) and not action.again:
            rows.setdefault(action.source, {}).update(zip(action.places, action.rows, strict=True))
    return tuple(
        Feed(source, tuple(feeds[place] for place in sorted(feeds)), tuple(sorted(feeds)))
        for source, feeds in sorted(rows.items())
    )


def is_possible(history: History) -> bool:
    """Whether sources deliver again only what they have delivered."""
    fed: set[tuple[str, int]] = set()
    for action in history:
        if isinstance(action, Feed):
            places = {(action.source, place) for place in action.places}
            if action.again and not places <= fed:
                return False
            fed |= places
    return True


def shrunk(history: History, fails: Callable[[History], bool]) -> History:
    """Leave out actions, and rows of them, for as long as the history still fails."""
    size = max(1, len(history) // 2)
    while True:
        start, before = 0, history
        while start < len(history):
            shorter = history[:start] + history[start + size :]
            if fails(shorter):
                history = shorter
            else:
                start += size
        if size > 1:
            size //= 2
            continue
        history = _with_fewer_rows(history, fails)
        if history == before:
            return history


def _with_fewer_rows(history: History, fails: Callable[[History], bool]) -> History:
    for number, action in enumerate(history):
        if not isinstance(action, Feed):
            continue
        kept_action = action
        for place in action.places:
            if len(kept_action.places) == 1:
                break
            pairs = zip(kept_action.rows, kept_action.places, strict=True)
            rows, places = zip(*[pair for pair in pairs if pair[1] != place], strict=True)
            fewer = replace(kept_action, rows=rows, places=places)
            shorter = (*history[:number], fewer, *history[number + 1 :])
            if fails(shorter):
                history, kept_action = shorter, fewer
    return history


Result: TypeAlias = Callable[[list[dict[str, Any]]], Any]
"""Makes of all output what must be the same in every history."""


class FuzzError(AssertionError):
    """A history in which the query goes wrong: the seed, the shortened history, the difference."""

    def __init__(self, seed: int, history: History, wrong: str) -> None:
        super().__init__(seed, history, wrong)
        self.seed, self.history, self.wrong = seed, history, wrong

    def __str__(self) -> str:
        lines = "\n".join(f"  {number}. {action}" for number, action in enumerate(self.history, 1))
        return (
            f"the query goes wrong in this history (seed {self.seed}):\n{lines}\n{self.wrong}\n"
            f"To run it again: fuzz(..., seeds=[{self.seed}])"
        )


@dataclass(frozen=True, slots=True)
class Fuzzing:
    """How histories of one query are run and compared."""

    make: Callable[[int, int], Driver]
    """Returns a driver that has not run yet, for a number of tasks and a seed."""
    functions: Sequence[Any]
    """Those of the pipeline, which see the time of the driver."""
    result: Result | None
    reset: Callable[[], None] | None

    def search(
        self, feed: Mapping[str, Sequence[Any]], seeds: Iterable[int], trouble: Trouble
    ) -> None:
        """Run a history per seed; FuzzError for the first that goes wrong."""
        for seed in seeds:
            chance = random.Random(seed)
            tasks = chance.choice((1, 2, 3))
            history = draw_history(chance, feed, trouble)
            if self.wrong(history, tasks, seed) is None:
                continue
            short = shrunk(history, partial(self._fails, tasks=tasks, seed=seed))
            raise FuzzError(seed, short, self.wrong(short, tasks, seed) or "")

    def _fails(self, history: History, tasks: int, seed: int) -> bool:
        try:
            return self.wrong(history, tasks, seed) is not None
        except Exception:  # noqa: BLE001  without trouble it fails too, so it shows nothing
            return False

    def wrong(self, history: History, tasks: int, seed: int) -> str | None:
        """Return what is wrong with a history; None if all is well.

        An error that also comes without any trouble is raised.
        """
        if not is_possible(history):
            return None
        expected = self._outcome(calm(history), tasks, seed)
        try:
            outcome = self._outcome(history, tasks, seed)
        except Exception as error:  # noqa: BLE001  it is the user's code that fails
            return f"it fails: {type(error).__name__}: {error}"
        if isinstance(outcome, OutputRows):
            lines = difference(outcome, expected, ordered=False)
            return "\n".join(lines) or None
        if outcome == expected:
            return None
        return f"the result is        {outcome}\nand in a calm history {expected}"

    def _outcome(self, history: History, tasks: int, seed: int) -> Any:
        if self.reset is not None:
            self.reset()
        driver = self.make(tasks, seed)
        try:
            with seen_time(driver.clock.now_ms, self.functions):
                run_history(driver, history)
            rows = driver.output
        finally:
            driver.close()
        return rows if self.result is None else self.result(rows)


def run_history(driver: Driver, history: History) -> None:
    """Let a driver that has just been made go through a history, and run until it is at rest."""
    for action in history:
        match action:
            case Feed(source, rows):
                driver.feed(source, rows)
            case EndEpoch():
                driver.epoch()
            case Wait(time):
                driver.advance(DELAYS_MS[time])
            case Disturb(how):
                driver.disturb(how)
            case CrashAndRestart(step):
                driver.crash(at=step)
                driver.restart()
    driver.run()


NowMs = Callable[[], int]

PACKAGE = __name__.partition(".")[0]


class _AsReal(type):
    """Makes values of the real class values of the replaced one too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__bases__[0])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__bases__[0])


def _datetime(now_ms: NowMs) -> type:
    class Datetime(real.datetime, metaclass=_AsReal):
        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> Any:
            return real.datetime.fromtimestamp(now_ms() / 1000, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.datetime.fromtimestamp(now_ms() / 1000, real.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    return Datetime


def _date(now_ms: NowMs) -> type:
    class Date(real.date, metaclass=_AsReal):
        @classmethod
        def today(cls) -> Any:
            return real.datetime.fromtimestamp(now_ms() / 1000).date()  # noqa: DTZ006  as date does

    return Date


@contextmanager
def seen_time(now_ms: NowMs, functions: Iterable[Any] = ()) -> Iterator[None]:
    """Let the user's modules, and these functions, see this time instead of the real one."""
    replaced: dict[int, Any] = {
        id(time.time): lambda: now_ms() / 1000,
        id(time.time_ns): lambda: now_ms() * 1_000_000,
        id(real.datetime): _datetime(now_ms),
        id(real.date): _date(now_ms),
    }
    module = types.ModuleType("datetime")
    module.__dict__.update(vars(real))
    module.__dict__.update(datetime=replaced[id(real.datetime)], date=replaced[id(real.date)])
    replaced[id(real)] = module
    spaces = [vars(time), *_user_modules(), *(function.__globals__ for function in functions)]
    replacements = [
        (space, {name: replaced[id(old)] for name, old in space.items() if id(old) in replaced})
        for space in {id(space): space for space in spaces}.values()
    ]
    originals = [(space, {name: space[name] for name in names}) for space, names in replacements]
    try:
        for space, names in replacements:
            space.update(names)
        yield
    finally:
        for space, names in originals:
            space.update(names)


def functions_of(value: Any) -> list[Any]:
    """Return the Python functions in a tree of dataclasses and sequences."""
    functions: list[Any] = []
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        functions.append(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            functions += functions_of(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for element in value:
            functions += functions_of(element)
    return functions


def _user_modules() -> list[dict[str, Any]]:
    """Return the globals of modules that are neither Python's, nor installed, nor this package."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    spaces = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(installed) and name.partition(".")[0] != PACKAGE:
            spaces.append(vars(module))
    return spaces
