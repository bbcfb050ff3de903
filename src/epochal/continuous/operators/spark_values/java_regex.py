"""Java's regular expressions, translated to Python's. Pure.

What differs is rewritten: a dot and `$` know more line ends in Java, classes such as `\\d` are
ASCII, named groups and some escapes are written differently. What has no counterpart is refused.
"""

from __future__ import annotations

import functools
import re

from epochal.errors import OptionError

_ENDS = "\\n\\r\\x85\\u2028\\u2029"
_DOT = f"[^{_ENDS}]"
_END = f"(?=(?:\\r\\n|[{_ENDS}])?\\Z)"
_CLASSES = {
    "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "Upper": "A-Z", "Lower": "a-z",
    "Punct": r"!-/:-@\[-`{-~", "Space": r" \t\n\x0b\f\r", "XDigit": "0-9a-fA-F", "Blank": r" \t",
    "Graph": "!-~", "Print": " -~", "Cntrl": r"\x00-\x1f\x7f", "ASCII": r"\x00-\x7f",
}  # fmt: skip
_BLANKS = r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_SAME = frozenset("dDwWsSbBAntrf" + "123456789")
_NAMED = re.compile(r"\?<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-[a-zA-Z]+)?[:)]")


def refused(pattern: str, what: str) -> OptionError:
    """The error for a pattern that cannot be translated."""
    return OptionError(
        f"The regular expression {pattern!r} has {what}, which Java and Python do not treat alike. "
        f"Write it without, or compute it in map_in_arrow."
    )


@functools.lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """The Python pattern that matches what Java's does."""
    try:
        return re.compile(translated(pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(
            f"{pattern!r} is not a regular expression that is supported: {error}."
        ) from None


def translated(pattern: str) -> str:
    """The text of the Python pattern."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        each = pattern[at]
        if each == "\\":
            text, at = _escape(pattern, at, inside=False)
            parts.append(text)
        elif each == "[":
            text, at = _class(pattern, at)
            parts.append(text)
        elif each == "(" and pattern[at + 1 : at + 2] == "?":
            text, at = _group(pattern, at)
            parts.append(text)
        else:
            parts.append({".": _DOT, "$": _END}.get(each, each))
            at += 1
    return "".join(parts)


def _group(pattern: str, at: int) -> tuple[str, int]:
    named = _NAMED.match(pattern, at + 1)
    if named:
        return f"(?P<{named[1]}>", named.end()
    flags = _FLAGS.match(pattern, at + 1)
    if flags:
        if flags[1] not in ("", "i"):
            raise refused(pattern, f"the flags {flags[0]!r}")
        if flags[1] and (at or flags[0].endswith(":")) and not flags[0].endswith(":"):
            raise refused(pattern, "a flag that is not at its start")
    if pattern.startswith(("(?P", "(?#", "(?(", "(?-"), at):
        raise refused(pattern, f"the group {pattern[at : at + 4]!r}")
    return "(?", at + 2


def _escape(pattern: str, at: int, *, inside: bool) -> tuple[str, int]:
    each = pattern[at + 1 : at + 2]
    if each in ("p", "P"):
        found = re.compile(r"\{(?:Is)?(\w+)\}").match(pattern, at + 2)
        members = _CLASSES.get(found[1]) if found else None
        if found is None or members is None or (inside and each == "P"):
            raise refused(pattern, f"the class {pattern[at : at + 10]!r}")
        negated = "^" if each == "P" else ""
        return (members if inside else f"[{negated}{members}]"), found.end()
    if each == "Q":
        end = pattern.find("\\E", at + 2)
        literal = pattern[at + 2 : end if end >= 0 else None]
        return re.escape(literal), end + 2 if end >= 0 else len(pattern)
    if each == "h":
        return (_BLANKS if inside else f"[{_BLANKS}]"), at + 2
    if each == "z" and not inside:
        return r"\Z", at + 2
    if each == "Z" and not inside:
        return _END, at + 2
    if each == "k" and not inside:
        found = re.compile(r"<(\w+)>").match(pattern, at + 2)
        if found:
            return f"(?P={found[1]})", found.end()
    if each == "x" and re.match(r"[0-9a-fA-F]{2}", pattern[at + 2 : at + 4]):
        return pattern[at : at + 4], at + 4
    if each == "u" and re.match(r"[0-9a-fA-F]{4}", pattern[at + 2 : at + 6]):
        return pattern[at : at + 6], at + 6
    if each == "e":
        return r"\x1b", at + 2
    if each in _SAME or (each and not each.isalnum()):
        if inside and each in "bBA":
            raise refused(pattern, f"\\{each} in a class")
        return (pattern[at : at + 2] if each.isascii() else re.escape(each)), at + 2
    raise refused(pattern, f"the escape {pattern[at : at + 2]!r}")


def _class(pattern: str, at: int) -> tuple[str, int]:
    parts = ["["]
    index = at + 1
    if pattern[index : index + 1] == "^":
        parts.append("^")
        index += 1
    first = True
    while index < len(pattern):
        each = pattern[index]
        if each == "]" and not first:
            return "".join(parts) + "]", index + 1
        if each == "[" or pattern.startswith("&&", index) or (each == "]" and first):
            raise refused(pattern, "a class within a class")
        if each == "\\":
            text, index = _escape(pattern, index, inside=True)
            parts.append(text)
        else:
            parts.append(re.escape(each) if each in "|~&" else each)
            index += 1
        first = False
    raise OptionError(f"{pattern!r} is not a regular expression: a class does not end.")


@functools.lru_cache(maxsize=1024)
def replacement(text: str) -> tuple[str | int, ...]:
    """The parts of a replacement: texts, and the numbers of groups such as `$1`."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        each = text[at]
        if each == "\\" and at + 1 < len(text):
            parts.append(text[at + 1])
            at += 2
        elif each == "$":
            found = re.compile(r"\d").match(text, at + 1)
            if found is None or text[at + 2 : at + 3].isdigit():
                raise OptionError(
                    f"The replacement {text!r} refers to a group by name, or by a number of two "
                    f"digits. Only $0 to $9 are supported; write \\$ for the character $."
                )
            parts.append(int(found[0]))
            at += 2
        else:
            parts.append(each)
            at += 1
    return tuple(parts)
