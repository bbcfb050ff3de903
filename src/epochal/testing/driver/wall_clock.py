"""Lets a user's code see the time of a driver, so that a pipeline that reads the clock is found.

`time.time` and `time.time_ns` are replaced everywhere, `datetime` and `date` in the modules
of the user and in the globals of the pipeline's functions. Modules of Python and of installed
packages keep theirs, because much of them depends on these classes being the real ones.

Note: an import of `datetime` inside a function is not seen.
"""

from __future__ import annotations

import datetime as real
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

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
    spaces = list({id(space): space for space in _spaces(functions)}.values())
    replacements = [(space, _uses(space, replaced)) for space in spaces]
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


def _uses(space: Mapping[str, Any], replaced: Mapping[int, Any]) -> dict[str, Any]:
    return {name: replaced[id(value)] for name, value in space.items() if id(value) in replaced}


def _spaces(functions: Iterable[Any]) -> Iterator[dict[str, Any]]:
    yield vars(time)
    yield from _user_modules()
    yield from (function.__globals__ for function in functions)


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
