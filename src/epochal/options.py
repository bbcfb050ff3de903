"""Reads Spark's string options into frozen dataclasses.

The field `max_file_age` is the option `maxFileAge`; upper and lower case do not matter. The type of
the field determines how its text is parsed. A field without a default is a required option. A
field's metadata may have two keys: `also` lists other names of the same option, and `prefix` makes
the field a mapping of all options that start with the prefix, such as `kafka.`, which is removed.

Note: Nothing is guessed. An unknown name is an error, and so is a duration without a unit.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeAlias, TypeVar

from epochal.errors import OptionError

T = TypeVar("T")

ByteSize: TypeAlias = Annotated[int, "bytes"]
"""A number of bytes, which an option may give with a unit: `10m`."""
UNITS_BYTES = {
    unit + ending: 1024**power
    for power, unit in enumerate(("", "k", "m", "g", "t", "p"))
    for ending in ("", "b")
}
UNITS_MS = {
    "us": 0.001,
    "microsecond": 0.001,
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_SECRET = re.compile(r"secret|password|token|credential|access-key|sas|auth", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*):\S*@")
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option of a class, as users write it."""

    name: str
    also: tuple[str, ...]
    required: bool
    default: str
    prefix: bool


def read_options(cls: type[T], given: Mapping[str, str], *, of: str) -> T:
    """Build a `cls` from the options that a user gave; errors start with `of`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    options = dict(_described(cls))
    names = {
        name.lower(): field
        for field, option in options.items()
        if not option.prefix
        for name in (option.name, *option.also)
    }
    prefixes = {option.name.lower(): field for field, option in options.items() if option.prefix}
    values: dict[str, Any] = {field: {} for field in prefixes.values()}
    chosen: dict[str, str] = {}
    for key, text in given.items():
        field = names.get(key.lower())
        if field is not None:
            if field in chosen:
                raise OptionError(
                    f"{of}: {chosen[field]} and {key} are names of the same option: give only one "
                    f"of them."
                )
            chosen[field] = key
            values[field] = _parsed(hints[field], text, f"{of}: {options[field].name}")
            continue
        prefix = next((p for p in prefixes if key.lower().startswith(p)), None)
        if prefix is None:
            known = [name for option in options.values() for name in (option.name, *option.also)]
            raise OptionError(
                f"{of} has no option {key!r}; it would be ignored.{suggestion(key, known)}"
            )
        values[prefixes[prefix]][key[len(prefix) :]] = str(text)
    for field, option in options.items():
        if option.required and field not in values:
            raise OptionError(f"{of}: option {option.name} must be given.")
    return cls(**values)


def options_of(cls: type[Any]) -> list[OptionInfo]:
    """The options of a class, in the order of its fields."""
    return [option for _, option in _described(cls)]


def option_name(field: str) -> str:
    """`max_file_age` as `maxFileAge`."""
    head, *rest = field.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """Remove passwords and tokens, of these settings and in URLs, from the text of an error."""
    for key, value in settings.items():
        if _SECRET.search(key) and value:
            text = text.replace(value, "***")
    return _PASSWORD_IN_URL.sub(r"\1:***@", text)


def parse_duration(text: str, what: str) -> timedelta:
    """Parse `100 milliseconds`, `7d` or `1 minute 30 seconds`; errors start with `what`."""
    position, total_ms = 0, 0.0
    while position < len(text) and (amount := _AMOUNT.match(text, position)):
        unit = amount[2].lower()
        scale = UNITS_MS.get(unit) or UNITS_MS.get(unit.removesuffix("s"))
        if scale is None:
            break
        total_ms += float(amount[1]) * scale
        position = amount.end()
    if position == 0 or position < len(text):
        raise OptionError(
            f"{what} must be a duration with its unit, such as '100 milliseconds' or '7d', not "
            f"{text!r}."
        )
    return timedelta(milliseconds=total_ms)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean X?` for the closest known word, or the list of known words."""
    known = sorted(known)
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {by_lower[near[0]]}?"
    return f" Known: {', '.join(known)}." if known else ""


def _described(cls: type[Any]) -> Iterator[tuple[str, OptionInfo]]:
    """Yield every field of a class and the option that it is."""
    for field in dataclasses.fields(cls):
        also = tuple(field.metadata.get("also", ()))
        if "prefix" in field.metadata:
            yield field.name, OptionInfo(field.metadata["prefix"], also, False, "", True)
            continue
        missing = dataclasses.MISSING
        required = field.default is missing and field.default_factory is missing
        default = "" if required else _shown(field.default)
        yield field.name, OptionInfo(option_name(field.name), also, required, default, False)


def parse_size(text: str, what: str) -> int:
    """Parse `1048576`, `10m` or `1 GB`, as Spark does: units are powers of 1024."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
    scale = UNITS_BYTES.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise OptionError(
            f"{what} must be a number of bytes, with a unit if you like, such as 10m or 1g, not "
            f"{text!r}."
        )
    return int(match[1]) * int(scale)


def _parsed(hint: Any, text: Any, what: str) -> Any:
    if hint == ByteSize:
        return parse_size(_as_text(text, what), what)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arm for arm in typing.get_args(hint) if arm is not type(None))
        return _parsed(inner, text, what)
    text = _as_text(text, what)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(_parsed(inner, part.strip(), what) for part in text.split(",") if part.strip())
    if hint is str:
        return text
    if hint is timedelta:
        return parse_duration(text, what)
    if hint is bool:
        if text.strip().lower() not in ("true", "false"):
            raise OptionError(f"{what} must be true or false, not {text!r}.")
        return text.strip().lower() == "true"
    if hint in (int, float):
        try:
            return hint(text.strip())
        except ValueError:
            kind = "a whole number" if hint is int else "a number"
            raise OptionError(f"{what} must be {kind}, not {text!r}.") from None
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if str(member.value).lower() == text.strip().lower():
                return member
        choices = ", ".join(str(member.value) for member in hint)
        raise OptionError(f"{what} must be one of {choices}, not {text!r}.")
    raise AssertionError(f"{what}: no reader for options of type {hint}")


def _as_text(value: Any, what: str) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case enum.Enum():
            return str(value.value)
        case list() | tuple():
            return ",".join(map(str, value))
        case timedelta():
            return f"{value / timedelta(milliseconds=1)} ms"
    raise OptionError(f"{what} must be a string, a number, true or false, not {value!r}.")


def _shown(default: Any) -> str:
    match default:
        case None | dataclasses._MISSING_TYPE():
            return ""
        case tuple():
            return ",".join(map(str, default))
        case timedelta():
            return f"{default // timedelta(milliseconds=1)} ms"
        case _:
            return _as_text(default, "")
