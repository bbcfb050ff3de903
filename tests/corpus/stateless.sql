-- Queries without state. A header has the query's name and, unless it is append, its mode and key columns.

--- select columns
SELECT id, user, amount FROM events;

--- select everything
SELECT * FROM events;

--- filter
SELECT id FROM events WHERE qty > 10 AND kind <> 'view';

--- filter with nulls
SELECT id FROM events WHERE flag OR qty IS NULL;

--- filter out everything
SELECT id FROM events WHERE qty > 1000;

--- arithmetic
SELECT id, qty + 1 AS a, qty * 2.5 AS b, total % 7 AS c, -qty AS d FROM events;

--- decimal arithmetic
SELECT id, amount * small AS a, amount + big AS b, amount / 3 AS c FROM events;

--- casts
SELECT id, CAST(qty AS string) AS a, CAST(amount AS double) AS b, CAST(at AS date) AS c,
CAST(score AS int) AS d FROM events;

--- try functions
SELECT id, try_cast(payload AS int) AS a, try_divide(total, qty) AS b, try_add(total, 1L) AS c
FROM events;

--- case when
SELECT id, CASE WHEN qty > 0 THEN 'plus' WHEN qty < 0 THEN 'minus' ELSE 'none' END AS sign FROM
events;

--- if and coalesce
SELECT id, if(flag, qty, 0) AS a, coalesce(kind, user, 'x') AS b, nvl(qty, -1) AS c, nullif(kind,
'buy') AS d FROM events;

--- texts
SELECT id, upper(kind) AS a, concat(user, '-', kind) AS b, substring(user, 1, 1) AS c,
length(payload) AS d, lpad(kind, 6, '*') AS e FROM events;

--- concat_ws and split
SELECT id, concat_ws('/', kind, user) AS a, split(concat_ws(',', tags), ',') AS b FROM events;

--- like
SELECT id FROM events WHERE kind LIKE '%e%' AND user NOT LIKE 'u_';

--- regexp
SELECT id, regexp_extract(payload, '"n": *(-?[0-9]+)', 1) AS a, regexp_replace(payload, '[0-9]+',
'#') AS b, payload RLIKE '^\\{.*\\}$' AS c FROM events;

--- in list
SELECT id FROM events WHERE kind IN ('buy', 'cart');

--- long in list
SELECT id FROM events WHERE qty IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

--- between
SELECT id FROM events WHERE qty BETWEEN -5 AND 5;

--- from_json
SELECT id, from_json(payload, 'who string, n int, list array<int>, sub struct<x:double>') AS j
FROM events;

--- fields of json
SELECT id, j.who, j.n, j.sub.x AS x, j.list[0] AS first FROM (SELECT id, from_json(payload, 'who
string, n int, list array<int>, sub struct<x:double>') AS j FROM events WHERE payload LIKE
'%list%');

--- get_json_object
SELECT id, get_json_object(payload, '$.sub.x') AS a, get_json_object(payload, '$.list[1]') AS b
FROM events;

--- to_json
SELECT id, to_json(struct(user, qty, amount, at, tags, place)) AS j FROM events;

--- json round trip
SELECT id, from_json(to_json(named_struct('a', qty, 'b', tags)), 'a int, b array<string>') AS r
FROM events;

--- dates
SELECT id, year(at) AS a, month(at) AS b, dayofmonth(at) AS c, hour(at) AS d, minute(at) AS e,
dayofweek(day) AS f, weekofyear(day) AS g FROM events;

--- date arithmetic
SELECT id, date_add(day, 3) AS a, datediff(day, DATE'2026-01-01') AS b, add_months(day, 1) AS c,
last_day(day) AS d, trunc(day, 'MM') AS e FROM events;

--- time arithmetic
SELECT id, at + INTERVAL '1' HOUR AS a, at - INTERVAL '2 03' DAY TO HOUR AS b, date_trunc('hour',
at) AS c, unix_timestamp(at) AS d FROM events;

--- date formats
SELECT id, date_format(at, 'yyyy-MM-dd HH:mm:ss.SSS') AS a, to_timestamp(date_format(at,
'dd.MM.yyyy'), 'dd.MM.yyyy') AS b, from_unixtime(id) AS c FROM events;

--- time zones
SELECT id, from_utc_timestamp(at, 'Europe/Berlin') AS a, to_utc_timestamp(at, 'America/New_York')
AS b FROM events;

--- arrays
SELECT id, size(tags) AS a, array_contains(tags, 'a') AS b, array_distinct(tags) AS c,
sort_array(tags) AS d, array_join(tags, '+', '?') AS e FROM events;

--- array access
SELECT id, try_element_at(tags, 1) AS a, slice(tags, 1, 2) AS b, array_position(tags, 'b') AS c,
array_union(tags, array('z')) AS d FROM events;

--- maps
SELECT id, attrs['x'] AS a, map_keys(attrs) AS b, map_values(attrs) AS c, size(attrs) AS d,
map_contains_key(attrs, 'y') AS e FROM events;

--- make maps
SELECT id, map('q', qty, 't', 1) AS a, map_from_arrays(array('k'), array(user)) AS b,
str_to_map(payload) AS c FROM events WHERE payload NOT LIKE '%:%:%';

--- structs
SELECT id, place.city, named_struct('a', qty, 'b', struct(user, kind)) AS s FROM events;

--- higher order
SELECT id, transform(tags, t -> upper(t)) AS a, filter(tags, t -> t > 'a') AS b, exists(tags, t ->
t IS NULL) AS c, aggregate(array(1, qty), 0, (x, y) -> x + y) AS d FROM events;

--- higher order over maps
SELECT id, map_filter(attrs, (k, v) -> v > 1) AS a, transform_values(attrs, (k, v) -> v * qty) AS
b FROM events;

--- hashes
SELECT id, hash(user, qty) AS a, xxhash64(user, amount) AS b, md5(payload) AS c, sha2(payload,
256) AS d, crc32(raw) AS e FROM events;

--- binary
SELECT id, hex(raw) AS a, base64(raw) AS b, length(raw) AS c, CAST(user AS binary) AS d FROM
events;

--- mathematics
SELECT id, round(score, 1) AS a, floor(score) AS b, ceil(score) AS c, sqrt(abs(score)) AS d,
pow(qty, 2) AS e, greatest(qty, 0) AS f FROM events;

--- bits
SELECT id, qty & 3 AS a, qty | 8 AS b, qty ^ 5 AS c, ~qty AS d, shiftleft(qty, 2) AS e FROM events;

--- null functions
SELECT id, isnull(qty) AS a, isnotnull(kind) AS b, nanvl(score, 0D) AS c, qty <=> NULL AS d FROM
events;

--- union all
SELECT id, user FROM events UNION ALL SELECT pid, payer FROM payments;

--- union of filters
SELECT id, 'a' AS part FROM events WHERE qty > 0 UNION ALL SELECT id, 'b' FROM events WHERE qty <=
0;

--- union of itself
SELECT id FROM events UNION ALL SELECT id FROM events;

--- explode
SELECT id, explode(tags) AS tag FROM events;

--- explode outer
SELECT id, explode_outer(tags) AS tag FROM events;

--- posexplode
SELECT id, posexplode(tags) AS (place, tag) FROM events;

--- explode a map
SELECT id, explode(attrs) AS (k, v) FROM events;

--- lateral view
SELECT id, t FROM events LATERAL VIEW explode(tags) x AS t WHERE t <> 'b';

--- inline
SELECT id, inline(array(named_struct('a', qty, 'b', 1), named_struct('a', 0, 'b', 2))) FROM events;

--- stack
SELECT id, stack(2, 'q', qty, 't', CAST(total AS int)) AS (what, n) FROM events WHERE abs(total) <
1000000000;

--- json_tuple
SELECT id, json_tuple(payload, 'who', 'n') AS (who, n) FROM events;

--- explode json
SELECT id, explode(from_json(payload, 'list array<int>').list) AS n FROM events;

--- common table expression
WITH good AS (SELECT * FROM events WHERE qty > 0) SELECT id, qty FROM good WHERE flag;

--- nested queries
SELECT a, b FROM (SELECT id AS a, qty AS b FROM (SELECT * FROM events WHERE flag) WHERE qty > 0);

--- scalar subquery
SELECT id, (SELECT max(level) FROM users) AS top FROM events;

--- watermark without state
SELECT id, at FROM events_w WHERE qty > 0;

--- window column
SELECT id, window(at, '10 seconds') AS w FROM events;

--- sliding window column
SELECT id, window(at, '10 seconds', '5 seconds') AS w FROM events;

--- explode of a higher order function
SELECT id, explode(transform(tags, t -> concat(t, kind))) AS t FROM events;

--- json_tuple outer
SELECT id, g.* FROM events LATERAL VIEW OUTER json_tuple(payload, 'who', kind) g AS a, b;

--- explode variants
SELECT id, pos, key, try_variant_get(value, '$', 'string') AS v FROM events, LATERAL
variant_explode_outer(try_parse_json(payload));
