"""Texts and bytes as base64, hexadecimal digits, character sets, URLs and the like. Pure."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import quote_plus, unquote_to_bytes

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.continuous.operators.expressions.textual.texts import BOOL, INT, TEXT, rowwise
from epochal.errors import ExpressionError

BINARY = pa.binary()
_CHARSETS = {
    "us-ascii": "ascii", "iso-8859-1": "latin-1", "utf-8": "utf-8", "utf-16be": "utf-16-be",
    "utf-16le": "utf-16-le", "utf-16": "utf-16", "utf-32": "utf-32-be",
}  # fmt: skip
_SOUNDS = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))


def _base64(value: bytes, chunks: bool) -> str:
    text = base64.b64encode(value).decode()
    if not chunks:
        return text
    return "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))


def _hexadecimal(value: Any) -> str:
    if isinstance(value, int):
        return f"{value % 2**64:X}"
    data: bytes = value.encode() if isinstance(value, str) else value
    return data.hex().upper()


def _from_hexadecimal(call: Call, value: Value) -> Value:
    def single(text: str) -> bytes | None:
        padded = "0" + text if len(text) % 2 else text
        if re.fullmatch(r"[0-9a-fA-F]*", padded):
            return bytes.fromhex(padded)
        if call.ansi:
            raise ExpressionError(f"CONVERSION_INVALID_INPUT: {text!r} is not hexadecimal.")
        return None

    return by_row(single, BINARY, value)


_ALPHABET = re.compile(r"[^A-Za-z0-9+/=]+")


def _from_base64(call: Call, value: Value) -> Value:
    return by_row(_strict_base64 if call.extra.get("failOnError") else mime_base64, BINARY, value)


def _strict_base64(text: str) -> bytes:
    dense = re.sub(r"\s+", "", text)
    symbols = dense.rstrip("=")
    padding = len(dense) - len(symbols)
    fits = (len(dense) % 4 == 0 and padding < 3) if padding else len(symbols) % 4 != 1
    if not fits or not re.fullmatch(r"[A-Za-z0-9+/]*", symbols) or re.search(r"=\s", text):
        raise ExpressionError(
            f"CONVERSION_INVALID_INPUT: {text!r} is not base64. Use try_to_binary to get null."
        )
    return mime_base64(text)


def mime_base64(text: str) -> bytes:
    """The bytes of base64 in which other characters are ignored, as Java's MIME decoder has it."""
    symbols, padding, rest = _ALPHABET.sub("", text).partition("=")
    missing = -len(symbols) % 4
    raw_rest = text.partition("=")[2]
    wrong = missing == 3 or (padding and (missing == 0 or (missing == 2 and raw_rest[:1] != "=")))
    if wrong or rest.replace("=", ""):
        raise ExpressionError(
            f"{text!r} is not base64: its last four characters are not complete. Use "
            f"try_to_binary(…, 'base64') to get null instead."
        )
    return base64.b64decode(symbols + "=" * missing)


def _charset(name: str) -> str:
    found = _CHARSETS.get(name.lower())
    if found is None:
        known = ", ".join(sorted(_CHARSETS)).upper()
        raise ExpressionError(f"INVALID_PARAMETER_VALUE.CHARSET: {name!r} is none of {known}.")
    return found


def _encode(text: str, charset: str, *_: bool) -> bytes:
    name = _charset(charset)
    if name == "utf-16":
        return b"\xfe\xff" + text.encode("utf-16-be") if text else b""
    try:
        return text.encode(name)
    except UnicodeEncodeError as error:
        raise _malformed(charset, "encode") from error


def _decode(value: bytes, charset: str, *_: bool) -> str:
    name = _charset(charset)
    if name == "utf-16" and value[:2] not in (b"\xfe\xff", b"\xff\xfe"):
        name = "utf-16-be"
    try:
        return value.decode(name)
    except UnicodeDecodeError as error:
        raise _malformed(charset, "decode") from error


def _malformed(charset: str, function: str) -> ExpressionError:
    return ExpressionError(
        f"MALFORMED_CHARACTER_CODING: {function} was given characters that are not {charset}."
    )


def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


def _character(code: int) -> str:
    return "" if code < 0 else chr(code % 256)


def _soundex(text: str) -> str:
    first = text[:1].upper()
    if not first or first not in _SOUNDS:
        return text
    code, last = first, _SOUNDS[first]
    for each in text[1:]:
        sound = _SOUNDS.get(each.upper()) if each.isascii() else None
        if sound is None:
            last = "0"
            continue
        if sound == "7":
            continue
        if sound != "0" and sound != last:
            code += sound
            if len(code) == 4:
                break
        last = sound
    return code.ljust(4, "0")


def _url_encode(text: str) -> str:
    return quote_plus(text, safe="*-._").replace("~", "%7E")


def _url_decode(text: str, strict: bool = True) -> str | None:
    if re.search(r"%(?![0-9a-fA-F]{2})", text):
        if strict:
            raise ExpressionError(f"CANNOT_DECODE_URL: {text!r} has a % without two digits.")
        return None
    return unquote_to_bytes(text.replace("+", " ")).decode(errors="replace")


def _mask(text: str | None, *masks: str | None) -> str | None:
    if text is None:
        return None
    upper, lower, digit, other = masks

    def single(each: str) -> str:
        for belongs, mask in ((str.isupper, upper), (str.islower, lower), (str.isdecimal, digit)):
            if belongs(each):
                return each if mask is None else mask
        return each if other is None else other

    return "".join(map(single, text))


def _luhn(text: str) -> bool:
    if not re.fullmatch(r"[0-9]+", text):
        return False
    digits = [int(each) for each in reversed(text)]
    doubled = (2 * each - 9 if each > 4 else 2 * each for each in digits[1::2])
    return (sum(digits[0::2]) + sum(doubled)) % 10 == 0


FUNCTIONS: dict[str, Function] = {
    "Ascii": rowwise(_ascii, INT),
    "Base64.encode": rowwise(_base64, TEXT),
    "Chr": rowwise(_character, TEXT),
    "Encode.encode": rowwise(_encode, BINARY),
    "ExpressionImplUtils.isLuhnNumber": rowwise(_luhn, BOOL),
    "Hex": rowwise(_hexadecimal, TEXT),
    "Mask": lambda _, *values: by_row(_mask, TEXT, *values, nulls=True),
    "SoundEx": rowwise(_soundex, TEXT),
    "StringDecode.decode": rowwise(_decode, TEXT),
    "UnBase64": _from_base64,
    "Unhex": _from_hexadecimal,
    "UrlCodec.decode": rowwise(_url_decode, TEXT),
    "UrlCodec.encode": rowwise(_url_encode, TEXT),
}
