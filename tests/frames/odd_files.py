"""Makes odd files, with options and columns to read them, from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SIMPLE = (
    *("int", "long", "string", "double", "float", "boolean", "date", "timestamp", "timestamp_ntz"),
    *("decimal(10,2)", "decimal(38,18)", "byte", "short", "binary"),
)
NESTED = (
    *("array<int>", "array<string>", "struct<x: int, y: string>", "map<string,int>"),
    *("array<struct<x: date>>", "map<string,array<double>>", "struct<x: struct<y: timestamp>>"),
)
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "permissive", "nonsense")

TEXTS = (
    *("", " ", "x", "ü€😀", "a,b", 'say "hi"', "it's", "back\\slash", "tab\there", "null", "NULL"),
    *("-", "#c", "a\nb", "a\r\nb", "\ufeffbom", "\u2028", "true", "TRUE", "yes", "1", "01", "+1"),
    *("-0", "1.5", "1e3", ".5", "5.", "0x1f", "1_000", "1,000", " 2", "2 ", "2147483648", "128"),
    *(
        "9223372036854775808",
        "12345678.999",
        "99999999999.5",
        "NaN",
        "Infinity",
        "-Infinity",
        "Inf",
    ),
    *("2024-05-24", "2024-5-4", "24/05/2024", "20240524", "2024-02-30", "0001-01-01", "9999-12-31"),
    *("1500-01-01", "10000-01-01", "2024-05-24 15:03:20", "2024-05-24T15:03:20.123456Z"),
    *("2024-05-24T15:03:20+02:00", "2024-03-31 02:30:00", "2024-10-27 02:30:00", "12:30:00"),
    *("2024-05-24 15:03:20 Europe/Paris", "1900-01-01T00:00:00.5", "epoch", "now", "aGk=", "***"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Files of one format, and how to read them."""

    seed: int
    form: str
    columns: dict[str, str]
    options: dict[str, str]
    files: dict[str, bytes]
    wanted: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns.items())

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def make_case(seed: int, files: int) -> Case:
    """The case of a seed: mostly JSON and CSV."""
    rng = Random(seed)
    form = rng.choice(["json"] * 4 + ["csv"] * 4 + ["text", "xml", "xml", "binaryFile"])
    settings = {} if rng.random() < 0.7 else _settings(rng)
    columns = _columns(rng, form)
    options = _options(rng, form, columns)
    if options.get("mode", "").upper() == "FAILFAST":
        files = min(files, 3)
    encode = _encoding(options)
    write = {"json": _json_file, "csv": _csv_file, "xml": _xml_file}.get(form, _text_file)
    made = {f"f{n:03}.{form}": encode(write(rng, columns, options)) for n in range(files)}
    if rng.random() < 0.2:
        made["empty"] = b""
    if rng.random() < 0.2:
        made["broken-utf8"] = b'{"a": "\xff\xfe"}\n\xc3,\x28\n' + made[f"f000.{form}"]
    if rng.random() < 0.1:
        made["bom"] = b"\xef\xbb\xbf" + made[f"f000.{form}"]
    names = list(columns)
    wanted = names if rng.random() < 0.5 else rng.sample(names, rng.randint(0, len(names)))
    return Case(seed, form, columns, options, made, tuple(wanted), settings)


def _settings(rng: Random) -> dict[str, str]:
    return {
        "spark.sql.ansi.enabled": rng.choice(["true", "false"]),
        "spark.sql.session.timeZone": rng.choice(["UTC", "America/New_York", "+05:30"]),
        "spark.sql.legacy.timeParserPolicy": rng.choice(["EXCEPTION", "CORRECTED", "LEGACY"]),
        "spark.sql.json.enablePartialResults": rng.choice(["true", "false"]),
        "spark.sql.csv.parser.columnPruning.enabled": rng.choice(["true", "false"]),
        "spark.sql.columnNameOfCorruptRecord": rng.choice(["_corrupt_record", "c1"]),
    }


def _columns(rng: Random, form: str) -> dict[str, str]:
    if form == "text":
        return {"value": "string"}
    if form == "binaryFile":
        kinds = ("string", "timestamp", "long", "binary")
        return dict(zip(("path", "modificationTime", "length", "content"), kinds, strict=True))
    known: tuple[str, ...] = SIMPLE if form == "csv" else (*SIMPLE, *NESTED)
    if form != "json":
        known = tuple(kind for kind in known if form != "csv" or kind != "binary")
    columns = {f"c{n}": rng.choice(known) for n in range(rng.randint(1, 5))}
    if rng.random() < 0.4:
        columns["_corrupt_record"] = "string"
    return columns


def _some(rng: Random, choices: dict[str, tuple[str, ...]], most: int) -> dict[str, str]:
    names = rng.sample(sorted(choices), rng.randint(0, most))
    return {name: rng.choice(choices[name]) for name in names}


_BOTH = ("true", "false")
_FORMATS = {
    "dateFormat": ("yyyy-MM-dd", "dd/MM/yyyy", "yyyyMMdd", "yyyy-M-d"),
    "timestampFormat": ("yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]"),
    "timestampNTZFormat": ("yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss[.SSS]"),
    "timeZone": ("UTC", "Asia/Tokyo", "-03:00"),
    "locale": ("en-US", "de-DE"),
    "columnNameOfCorruptRecord": ("_corrupt_record", "c0", "nowhere"),
    "multiLine": _BOTH,
    "someStrayOption": ("x",),
}
_JSON = {
    **_FORMATS,
    "allowComments": _BOTH,
    "allowUnquotedFieldNames": _BOTH,
    "allowSingleQuotes": _BOTH,
    "allowNumericLeadingZeros": _BOTH,
    "allowNonNumericNumbers": _BOTH,
    "allowUnquotedControlChars": _BOTH,
    "allowBackslashEscapingAnyCharacter": _BOTH,
    "primitivesAsString": _BOTH,
    "dropFieldIfAllNull": _BOTH,
    "lineSep": ("\n", "\r\n", "|"),
    "encoding": ("UTF-8", "ISO-8859-1"),
}
_CSV = {
    **_FORMATS,
    "sep": (",", ";", "\t", "||"),
    "delimiter": ("|", ","),
    "quote": ('"', "'", ""),
    "escape": ("\\", '"', "'"),
    "charToEscapeQuoteEscaping": ("\\", "#"),
    "comment": ("#", "-"),
    "header": _BOTH,
    "enforceSchema": _BOTH,
    "ignoreLeadingWhiteSpace": _BOTH,
    "ignoreTrailingWhiteSpace": _BOTH,
    "nullValue": ("", "null", "-", "x"),
    "emptyValue": ("", "EMPTY"),
    "nanValue": ("NaN", "-"),
    "positiveInf": ("Inf", "Infinity"),
    "maxColumns": ("20480", "3"),
    "maxCharsPerColumn": ("-1", "20"),
    "unescapedQuoteHandling": ("STOP_AT_DELIMITER", "STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER"),
    "lineSep": ("\n", "|"),
    "encoding": ("UTF-8", "ISO-8859-1"),
}
_XML = {
    **_FORMATS,
    "attributePrefix": ("_", "@"),
    "valueTag": ("_VALUE", "c0"),
    "nullValue": ("null", "x"),
    "ignoreSurroundingSpaces": _BOTH,
    "excludeAttribute": _BOTH,
    "ignoreNamespace": _BOTH,
}
_XML.pop("multiLine")
_TEXT = {"wholetext": _BOTH, "lineSep": ("\n", "x", "\r\n"), "someStrayOption": ("x",)}


def _options(rng: Random, form: str, columns: dict[str, str]) -> dict[str, str]:
    choices = {"json": _JSON, "csv": _CSV, "xml": _XML, "text": _TEXT}.get(form, {})
    options = _some(rng, choices, min(4, len(choices)))
    if form in ("json", "csv", "xml") and rng.random() < 0.7:
        options["mode"] = rng.choices(MODES, (4, 4, 2, 1, 1))[0]
    if form == "xml":
        options["rowTag"] = "row"
    if form == "json" and options.get("lineSep") and rng.random() < 0.1:
        options["encoding"] = "UTF-16LE"
    return options


def _encoding(options: dict[str, str]) -> Callable[[str], bytes]:
    name = options.get("encoding", "UTF-8")
    return lambda text: text.encode(name, errors="replace")


def _json_value(rng: Random, kind: str) -> Any:
    """A value that often fits its column."""
    if rng.random() < 0.35:
        return rng.choice([None, True, 0, -1, 2.7, 1e300, 10**20, [], {}, [1], {"x": 1}])
    if rng.random() < 0.35:
        return rng.choice(TEXTS)
    match kind.partition("<")[0].partition("(")[0]:
        case "int" | "long" | "byte" | "short":
            return rng.choice([0, 1, -5, 127, 128, 40000, 2**31, 2**63 - 1, 2**63])
        case "double" | "float" | "decimal":
            return rng.choice([0.1, -2.50, 12345678.125, 1e-9, 123456789012345678])
        case "boolean":
            return rng.choice([True, False])
        case "date" | "timestamp" | "timestamp_ntz":
            return rng.choice(["2024-05-24", "2024-05-24T15:03:20Z", "1500-01-01", 19000, 1e9])
        case "array":
            return [rng.choice([1, None, "a", 2.5, {"x": "2024-05-24"}, []]) for _ in range(2)]
        case "struct":
            return {"x": rng.choice([1, "1", None, {"y": "2024-05-24"}]), "y": rng.choice(TEXTS)}
        case "map":
            return {rng.choice(TEXTS): rng.choice([1, None, "1", [1.5]]) for _ in range(2)}
    return rng.choice(TEXTS)


def _json_file(rng: Random, columns: dict[str, str], options: dict[str, str]) -> str:
    end = options.get("lineSep", "\n")
    if options.get("multiLine") == "true":
        rows = [_json_row(rng, columns) for _ in range(rng.randint(0, 3))]
        whole = rng.choice([f"[{','.join(rows)}]", rows[0] if rows else "", "\n".join(rows)])
        return whole.replace(",", ",\n") if rng.random() < 0.5 else whole
    lines = [_json_line(rng, columns) for _ in range(rng.randint(0, 6))]
    return end.join(lines) + (end if rng.random() < 0.7 else "")


def _json_row(rng: Random, columns: dict[str, str]) -> str:
    names = [name for name in columns if rng.random() < 0.85]
    row = {name: _json_value(rng, columns[name]) for name in names}
    if rng.random() < 0.15:
        row[rng.choice(["extra", "C0", "_corrupt_record"])] = rng.choice([1, "x", {"a": []}])
    return json.dumps(row, ensure_ascii=rng.random() < 0.5)


def _json_line(rng: Random, columns: dict[str, str]) -> str:
    text = _json_row(rng, columns)
    match rng.randrange(24):
        case 0:
            return text[: rng.randrange(len(text))]
        case 1:
            return text.replace('"', "'")
        case 2:
            return f"[{text}, {text}]"
        case 3:
            return f"{text} {rng.choice(['x', text, '//c', '/* c */', ','])}"
        case 4:
            return rng.choice(["", "  ", "null", "1", '"s"', "[]", "{}", "[1]", "not json", "{"])
        case 5:
            return text.replace('"c0"', rng.choice(["c0", '"c0": 1, "c0"', "/*c*/ 'c0'"]))
        case 6:
            return text.replace(": ", f": {rng.choice(['01, ', 'NaN, ', '+1, ', '-INF, '])}", 1)
        case 7:
            return f"\t {text}\r"
        case 8:
            return text.replace("e", rng.choice(["\\q", "\\u00e9", "\x01", "\\"]))
    return text


def _csv_file(rng: Random, columns: dict[str, str], options: dict[str, str]) -> str:
    separator = options.get("sep", options.get("delimiter", ","))
    end = options.get("lineSep", rng.choice(["\n", "\n", "\r\n"]))
    names = [name for name in columns if name != "_corrupt_record"]
    header = rng.choice([names, names[::-1], [name.upper() for name in names], [*names, "z"]])
    lines = [separator.join(header)] if options.get("header") == "true" else []
    for _ in range(rng.randint(0, 6)):
        count = max(0, len(names) + rng.choice([0] * 8 + [-1, 1]))
        lines.append(separator.join(_csv_cell(rng) for _ in range(count)))
    if rng.random() < 0.2:
        lines.insert(
            rng.randint(0, len(lines)), rng.choice(["", "  ", "# comment", '"', "\\", ","])
        )
    return end.join(lines) + (end if rng.random() < 0.7 else "")


def _csv_cell(rng: Random) -> str:
    text = rng.choice(TEXTS)
    match rng.randrange(10):
        case 0:
            return '"' + text.replace('"', '""') + '"'
        case 1:
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case 2:
            return f'"{text}'
        case 3:
            return f"'{text}'"
        case 4:
            return f' "{text}" '
        case 5:
            return f'"{text}"x'
    return text.replace("\n", " ").replace("\r", "") if rng.random() < 0.7 else f'"{text}"'


def _xml_file(rng: Random, columns: dict[str, str], options: dict[str, str]) -> str:
    del options
    rows = "\n".join(_xml_row(rng, columns) for _ in range(rng.randint(0, 5)))
    match rng.randrange(5):
        case 0:
            return rows
        case 1:
            return f'<?xml version="1.0" encoding="UTF-8"?>\n<rows>{rows}</rows>\n'
        case 2:
            return f"<rows>{rows}"
    return f"<rows>\n{rows}\n</rows>"


def _xml_row(rng: Random, columns: dict[str, str]) -> str:
    parts = []
    for name in columns:
        if rng.random() < 0.85:
            text = rng.choice(TEXTS)
            if rng.random() < 0.9:
                text = text.replace("&", "&amp;").replace("<", "&lt;")
            inner = rng.choice(
                [text] * 5 + [f"<x>{text}</x>", f"<![CDATA[{text}]]>", "<x/><y>1</y>"]
            )
            tag = rng.choice([name] * 6 + [name.upper(), f"n:{name}", "extra"])
            parts += [f"<{tag}>{inner}</{tag}>"] * rng.choice([1, 1, 1, 2])
    made = "".join(parts)
    match rng.randrange(10):
        case 0:
            return f"<row>{made}"
        case 1:
            return f'<row c0="1" k="v">{made}</row>'
        case 2:
            return "<row/>"
        case 3:
            return f"<row>{made}text</row><!-- <row/> -->"
    return f"<row>{made}</row>"


def _text_file(rng: Random, columns: dict[str, str], options: dict[str, str]) -> str:
    del columns, options
    lines = [rng.choice(TEXTS) for _ in range(rng.randint(0, 6))]
    return rng.choice(["\n", "\r\n", "\r"]).join(lines) + rng.choice(["", "\n"])
