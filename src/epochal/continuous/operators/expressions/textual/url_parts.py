"""parse_url: the parts of a URL, by the rules of Java's class URI. Pure."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.continuous.operators.spark_values.java_regex import compiled
from epochal.errors import ExpressionError

_OTHER = r"[^\x00-\x7f\x80-\x9f\s\u2028\u2029]"
_ESCAPED = r"%[0-9a-fA-F]{2}"
_COMMON = r"A-Za-z0-9_.!~*\'()$,;:@&=+-"
_PATH = re.compile(rf"(?:[{_COMMON}/]|{_ESCAPED}|{_OTHER})*")
_QUERY = re.compile(rf"(?:[{_COMMON}/?\[\]]|{_ESCAPED}|{_OTHER})*")
_NAME = re.compile(rf"(?:[{_COMMON}]|{_ESCAPED}|{_OTHER})+")
_URI = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)
_SERVER = re.compile(
    rf"(?:((?:[A-Za-z0-9_.!~*\'();:&=+$,-]|{_ESCAPED}|{_OTHER})*)@)?"
    r"(\[[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.]+)?\]|"
    r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}|"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?|"
    r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?)(?::([0-9]*))?"
)


def _parts(text: str) -> dict[str, str | None] | None:
    """The parts of a URL by their names in parse_url; None if it is not one."""
    scheme_only = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(?!/)", text)
    if scheme_only:
        return _opaque(scheme_only[1], text[scheme_only.end() :])
    found = _URI.fullmatch(text)
    if found is None:
        return None
    scheme, authority, path, query, fragment = found.groups()
    if authority == "" and not (path or query is not None or fragment is not None):
        return None
    if scheme is None and ":" in text and re.match(r"[^/?#]*:", text):
        return None  # what stands before the first colon is not a scheme
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query or ""):
        return None
    if not _QUERY.fullmatch(fragment or ""):
        return None
    host = user = None
    if authority:
        server = _SERVER.fullmatch(authority)
        if server is not None and _is_host(server[2]):
            user, host = server[1], server[2]
        elif not _NAME.fullmatch(authority):
            return None
    file = path if query is None else f"{path}?{query}"
    return {
        "HOST": host, "PATH": path, "QUERY": query, "REF": fragment, "PROTOCOL": scheme,
        "FILE": file, "AUTHORITY": authority or None, "USERINFO": user,
    }  # fmt: skip


def _is_host(host: str) -> bool:
    numbers = host.split(".")
    if len(numbers) == 4 and all(each.isdigit() for each in numbers):
        return all(int(each) < 256 for each in numbers)
    return True


def _opaque(scheme: str, rest: str) -> dict[str, str | None] | None:
    """Parts of a URL such as `mailto:a@b`, which has no path."""
    body, sharp, fragment = rest.partition("#")
    if not body or not _QUERY.fullmatch(body) or not _QUERY.fullmatch(fragment):
        return None
    return {"PROTOCOL": scheme, "REF": fragment if sharp else None}


def _parse_url(call: Call, *values: Value) -> Value:
    strict = bool(call.extra.get("failOnError", True))

    def single(text: str, part: str, *key: Any) -> str | None:
        if key and part != "QUERY":
            return None
        found = _parts(text)
        if found is None:
            if strict:
                raise ExpressionError(
                    f"INVALID_URL: {text!r} is not a URL. Use try_parse_url to get null instead."
                )
            return None
        value = found.get(part)
        if not key or value is None:
            return value
        match = compiled(f"(&|^){key[0]}=([^&]*)").search(value)
        return None if match is None else match[2]

    return by_row(single, pa.string(), *values)


FUNCTIONS: dict[str, Function] = {"ParseUrlEvaluator.evaluate": _parse_url}
