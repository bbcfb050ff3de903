"""The expressions on texts whose values are compared with Spark's."""

from __future__ import annotations

TEXTS = r"""
upper(s); lower(s); initcap(s); length(s); length(b); octet_length(s); bit_length(s); bit_length(b)
concat(s, t); concat(b, c); concat_ws('-', s, t); concat_ws(s, t, sarr); concat_ws(',', sarr)
substring(s, k, 3); substring(s, 2, k); substring(b, k, 2); substring(s, -2, 1); left(s, k)
right(s, k); substring_index(s, '.', k); substring_index(s, t, 1); substring_index(s, 'a', -1)
lpad(s, k, t); rpad(s, k, t); lpad(s, 5); rpad(b, 4); lpad(b, k, c); repeat(s, k); space(k)
replace(s, 'a', t); replace(s, t); translate(s, 'abc', '12'); translate(s, t, 'xy'); reverse(s)
trim(s); ltrim(s); rtrim(s); trim(BOTH 'a ' FROM s); trim(LEADING t FROM s)
trim(TRAILING 'b' FROM s); btrim(s, t); locate('a', s); locate(t, s, k); instr(s, t)
position('b' IN s); find_in_set(s, t); find_in_set('b', s); ascii(s); chr(l); chr(k)
base64(b); hex(l); hex(s); hex(b); unhex(s); encode(s, 'UTF-8'); encode(s, 'UTF-16')
encode(s, 'UTF-16LE'); decode(b, 'UTF-8'); soundex(s); levenshtein(s, t); levenshtein(s, t, 2)
overlay(s PLACING t FROM 2); overlay(s PLACING t FROM k FOR 1); elt(k, s, t); elt(2, s, t)
url_encode(s); try_url_decode(s); mask(s); mask(s, 'Q', 'q', 'd', 'o'); luhn_check(s)
startswith(s, t); endswith(s, t); contains(s, t); contains(s, 'a'); contains(b, c)
startswith(s, 'a'); endswith(s, 'b'); s LIKE 'a%'; s LIKE '%b'; s LIKE '%a%'; s LIKE 'a_b%'
s LIKE '%\\_b'; s LIKE 'a|%' ESCAPE '|'; s ILIKE 'A%b%'; s LIKE '_'
s LIKE ANY ('a_%', '_b'); NOT s LIKE '%a%b%'
"""

PATTERNS = r"""
s RLIKE '^[a-z]'; s RLIKE 'b$'; s RLIKE '.b'; s RLIKE '\\d+'; s RLIKE '\\p{Alpha}{2}'
s RLIKE 'a++b'; s RLIKE '(?i)ABC'; s RLIKE '[\\p{Punct}&]'; s RLIKE '\\Qa.b\\E'
s RLIKE '\\bhello\\b'; s RLIKE 'z\\Z'
s RLIKE '(?<first>a)\\k<first>'; s RLIKE '\\h'; s RLIKE '\\S\\s\\S'; regexp_replace(s, 'a|b', 'X')
regexp_replace(s, '(\\w)(\\w)', '$2$1'); regexp_replace(s, 'b', t, 2)
regexp_replace(s, '[aeiou]', '\\$'); regexp_extract(s, '(\\w+)\\W(\\w+)', 2)
regexp_extract(s, '(\\d+)', 1); regexp_extract(s, 'a(x)?', 1); regexp_extract_all(s, '(\\d)', 1)
regexp_extract_all(s, '[a-c]', 0); regexp_instr(s, 'b+'); split(s, '[,. ]'); split(s, ',', 2)
split(s, ''); split(s, 'a'); split(s, '', 2)
"""

FROM_JSON = """
a int, b string; a string; a bigint; a tinyint; a double; a float; a boolean; a decimal(10,2)
a decimal(38,18); a timestamp; a date; a timestamp_ntz; a binary; a array<int>; a array<string>
a struct<x:int,y:string>; a map<string,int>; a int, b string, _corrupt_record string
array<struct<a:int>>; map<string,string>; map<string,int>; array<int>
"""

JSON = r"""
from_json(s, 'a int, bad string', map('columnNameOfCorruptRecord', 'bad'))
get_json_object(s, '$.a'); get_json_object(s, '$.b'); get_json_object(s, '$')
get_json_object(s, '$.a.x'); json_object_keys(s)
get_json_object(s, '$.a[1]'); get_json_object(s, '$[0].a'); get_json_object(s, 'a')
json_array_length(s)
"""

TO_JSON = r"""
to_json(st); to_json(sarr); to_json(m)
to_json(struct(i, d, p, y, s, ts, tn, dt, b, bo, arr, m, st))
to_json(struct(s, i), map('ignoreNullFields', 'false')); to_json(struct(ts), map('timeZone', 'UTC'))
"""

SPECIAL = r"""
str_to_map(s); str_to_map(s, '&', '='); str_to_map(s, '[,:]', 'b+'); str_to_map(s, ',', '')
try_to_binary(s, 'base64'); try_parse_url(s, 'HOST'); try_parse_url(s, 'PATH')
try_parse_url(s, 'QUERY'); try_parse_url(s, 'REF'); try_parse_url(s, 'PROTOCOL')
try_parse_url(s, 'FILE'); try_parse_url(s, 'AUTHORITY'); try_parse_url(s, 'USERINFO')
try_parse_url(s, 'X'); try_parse_url(s, 'QUERY', 'b'); try_parse_url(s, 'QUERY', 'q')
get_json_object(s, '$[*]'); get_json_object(s, '$.a[*]'); get_json_object(s, '$.a[*].b')
get_json_object(s, '$.a[*][*]'); get_json_object(s, '$.a[0][*]'); get_json_object(s, '$.a[*][0]')
get_json_object(s, '$.*'); get_json_object(s, '$.a[*].b[*]'); get_json_object(s, '$.a[*].b[*].c')
get_json_object(s, '$.a[*][*][*]'); get_json_object(s, '$.a.b'); get_json_object(s, '$[*].a[*]')
get_json_object(s, '$[*][*]'); get_json_object(s, '$.a[*][0][1]'); size(array())
from_json(s, 'a timestamp', map('timestampFormat', 'dd/MM/yyyy HH:mm:ss'))
from_json(s, 'a timestamp', map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss[.SSS]XXX"))
from_json(s, 'a date, b date', map('dateFormat', 'dd.MM.yyyy'))
from_json(s, 'a timestamp_ntz', map('timestampNTZFormat', 'yyyyMMdd'))
"""

FORMATS = r"""
format_number(d, 0); format_number(d, 2); format_number(d, k); format_number(d, '#,##0.00')
format_number(d, '0.0##'); format_number(i, '000.#'); format_number(l, ''); format_number(l, k)
format_number(p, 1); format_string('%s|%10s|%-10s|%.3s|%S', s, t, s, t, s)
format_string('%s|%b|%B', i, bo, s); format_string('%d|%5d|%05d|%,d', i, i, i, i)
format_string('%+d|%(d|% d|%-6d|', l, l, l, l); format_string('%x|%X|%08x|%#x|%o', i, i, l, l, i)
format_string('%.2f|%10.3f|%,.1f|%+.0f', d, d, d, d); format_string('%(012.2f|%-12.1f|', d, d)
format_string('%e|%.2e|%12.0E', d, d, d); format_string('%c|%5c', abs(k), abs(k))
format_string('100%% %n%1$s %1$s %<s %2$s', s, t); format_string('%d %d', dt, ts)
"""

ADDRESSES = [
    *[
        "a:1,b:2",
        "a:1,a:2",
        "a",
        "a:b:c,d",
        "a=1&b=2",
        "aGk=",
        "aGk",
        "aG k=",
        "====",
        "aG=k",
        None,
    ],
    *[
        "aGkx=",
        "aGkxx",
        "ab==tm+1",
        "http://user:pw@host.com:80/p/a?q=1&b=x#ref",
        "https://a_b.c/x",
    ],
    *["mailto:a@b", "http://", "file:///a/b", "//h/p", "http://1.2.3.4/", "http://1.2.3.400/x?"],
    *["http://[::1]:8/x", "not a url", "http://x/%zz", "http://x/%41?é=ü#ß", "1:b", "http://h:x/"],
    *[
        "http://h.1/",
        "http://-h/",
        "http://h?q=a&q=b",
        "?q",
        "#f",
        "http:",
        "http://h/a b",
        "a/b:c",
    ],
    *["HTTP://H/[x]", "http://h/?[x]", "http://a.b./", "http://h/x?y#z#w", "/a:b", "http://h:/"],
    *["http://@h/", "é://x", "http://é/x", '[1,[2,"x"],{"a":1}]', '{"a":[1,2,3]}', '{"a":[[],[]]}'],
    *['{"a":[{"b":1},{"b":"x"},{"c":2}]}', '{"a":[[1,2],[3]]}', '{"a":[[[1,"y"],[2]],[[3]]]}'],
    *['{"a":[]}', '{"a":["x"]}', '{"a":[{"b":[1,2]},{"b":[3]}]}', '{"a":1,"a":{"b":2}}'],
    *['{"a":["😀","b"]}', '{"a":[null,1]}', '[{"a":[1]},{"a":[2]}]'],
    *['{"a":[{"b":[{"c":1},{"c":2}]},{"b":[]}]}', '{"a":"31/12/2020 23:59:58"}'],
    *['{"a":"2020-03-08T02:30:00.123-05:00"}', '{"a":"2020-03-08T02:30:00Z","b":1}'],
    *['{"a":"31.12.1999","b":"1999-12-31"}', '{"a":"20200230"}', '{"a":"20200229"}', '{"a":1}'],
]
"""Texts that are URLs, JSON with arrays in arrays, base64 or times, or nearly."""

RECORDS = [
    *['{"a":1,"b":"x"}', '{"a":1.0}', '{"a":"1"}', '{"a":null}', "{}", "", " ", "null", "[]", "1"],
    *['[{"a":1}]', '[{"a":1},{"a":2}]', '{"a":1} xyz', '{"a":1}{"a":2}', '{"a":1', "{a:1}"],
    *["{'a':1,'b':'q'}", '{"a":1,"a":2}', '{"a":99999999999}', '{"a":true}', '{"b":1}', "xyz"],
    *['{"b":1.50}', '{"b":1e3}', '{"b":{"x": [1, 2]}}', '{"b":[1, 2]}', '{"b":true}', '{"A":1}'],
    *['{"a":01}', '{"a":NaN}', '{"a":"NaN"}', '{"a":Infinity}', '{"a":-INF}', '"x"', '{"a":1,}'],
    *['{"b":"\\u00e9\\ud83d\\ude00\\n"}', '{"b":"\\x"}', '{"b":"a\tb"}', '// c\n{"a":1}'],
    *['{"a":1,"z":[}', '{"a":"x","b":"ok"}', '{"a":{"c":1}}', '{"a":[1]}', '{"a":2147483648}'],
    *['{"a":1e2}', '{"a":""}', '{"a":"2020-01-02"}', '{"a":"2020-01-02T03:04:05Z"}', '{"a":1.555}'],
    *['{"a":1577934245}', '{"a":"1.5"}', '{"a":"aGk="}', '{"a":"h"}', '{"a":[1,null,"x"]}'],
    *[
        '{"a":{"x":1,"y":"q"}}',
        '{"a":{"x":1,"y":2}}',
        '{"a":"2020-01-02 03:04:05.123"}',
        '{"a":.5}',
    ],
    *['{"a":123456789012345678901234567890}', '{"a":-0.0}', '{"a":+1}', '{"a":1.}', '{"a":tru}'],
    *['{"b":"\\/"}', '\ufeff{"a":1}', '{"a":1}}', '{"a" : 1 , "b" : "s p" }', None],
]


def json_functions() -> list[str]:
    """from_json with each schema, and the functions of paths."""
    return [f"from_json(s, '{schema}')" for schema in listed(FROM_JSON)] + listed(JSON)


def listed(text: str) -> list[str]:
    """The expressions of a text, separated by semicolons and lines."""
    return [part.strip() for line in text.splitlines() for part in line.split("; ") if part.strip()]
