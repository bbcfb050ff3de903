-- Nexmark as Spark SQL. Each section has the query, and after a line `>>>` the same for DuckDB, the
-- oracle. Views: bid, auction, person (streams with watermarks), side_input (a table).
-- A comment `due` says when a result was due; see texts.py. A header has the query's number and, unless it is append, the output mode and the key columns.

--- q0
SELECT id AS auction, who AS bidder, price, ts, extra FROM bid

--- q1
SELECT id AS auction, who AS bidder, 0.908 * price AS price, ts, extra FROM bid

--- q2
SELECT id AS auction, price /*due , ts AS due */ FROM bid WHERE id % 123 = 0

--- q3
SELECT p.name, p.city, p.state, a.id /*due , greatest(a.ts, p.ts) AS due */
FROM auction a JOIN person p ON a.who = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')

--- q4 | update 1
SELECT category, avg(final) AS price
FROM (
  SELECT max(b.price) AS final, a.category
  FROM auction a JOIN bid b ON a.id = b.id AND b.ts BETWEEN a.ts AND a.expires
  GROUP BY a.id, a.category
)
GROUP BY category

--- q5
SELECT bids.auction, bids.num /*due , bids.window.end + INTERVAL '4' SECOND AS due */
FROM (
  SELECT id AS auction, count(*) AS num, window
  FROM bid GROUP BY id, window(ts, '10 seconds', '2 seconds')
) bids
JOIN (
  SELECT max(num) AS top, window
  FROM (
    SELECT id, count(*) AS num, window
    FROM bid GROUP BY id, window(ts, '10 seconds', '2 seconds')
  )
  GROUP BY window
) best ON bids.window = best.window AND bids.num >= best.top
>>>
WITH bids AS (
  SELECT id AS auction, start, count(*) AS num
  FROM bid, (SELECT unnest(range(0, 5)) AS step), LATERAL (
    SELECT time_bucket(INTERVAL '2 seconds', ts) - step * INTERVAL '2 seconds' AS start
  )
  GROUP BY id, start
)
SELECT auction, num FROM bids
WHERE num >= (SELECT max(num) FROM bids other WHERE other.start = bids.start)

--- q6 | update 1
SELECT who, avg(price) OVER (PARTITION BY who ORDER BY ts ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
FROM bid

--- q7
SELECT b.id AS auction, b.price, b.who AS bidder, b.ts /*due , m.wt + INTERVAL '4' SECOND AS due */
FROM bid b
JOIN (
  SELECT top, window_time(window) AS wt
  FROM (SELECT max(price) AS top, window FROM bid GROUP BY window(ts, '10 seconds'))
) m ON b.price = m.top AND b.ts BETWEEN m.wt - INTERVAL '10' SECOND AND m.wt
>>>
SELECT b.id AS auction, b.price, b.who AS bidder, b.ts
FROM bid b
JOIN (
  SELECT max(price) AS top, time_bucket(INTERVAL '10 seconds', ts) AS start
  FROM bid GROUP BY start
) m ON b.price = m.top AND b.ts >= m.start - INTERVAL '1 microsecond'
  AND b.ts < m.start + INTERVAL '10 seconds'

--- q8
SELECT p.id, p.name, p.window.start AS start
  /*due , p.window.end + INTERVAL '4' SECOND AS due */
FROM (SELECT id, name, window FROM person GROUP BY id, name, window(ts, '10 seconds')) p
JOIN (SELECT who, window FROM auction GROUP BY who, window(ts, '10 seconds')) a
  ON p.id = a.who AND p.window = a.window
>>>
SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL '10 seconds', p.ts) AS start
FROM person p
JOIN auction a ON p.id = a.who
  AND time_bucket(INTERVAL '10 seconds', p.ts) = time_bucket(INTERVAL '10 seconds', a.ts)

--- q9
SELECT id, price, who
FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC, ts) AS place FROM bid)
WHERE place = 1

--- q10
SELECT id AS auction, who AS bidder, price, ts, extra,
  date_format(ts, 'yyyy-MM-dd') AS day, date_format(ts, 'HH:mm') AS minute
FROM bid
>>>
SELECT id AS auction, who AS bidder, price, ts, extra,
  strftime(ts, '%Y-%m-%d') AS day, strftime(ts, '%H:%M') AS minute
FROM bid

--- q11
SELECT who AS bidder, count(*) AS bids, session_window.start AS start, session_window.end AS end
  /*due , session_window.end + INTERVAL '4' SECOND AS due */
FROM bid GROUP BY who, session_window(ts, '2 seconds')
>>>
WITH gaps AS (
  SELECT who, ts, CASE WHEN ts >= lag(ts) OVER by_time + INTERVAL '2 seconds' THEN 1 ELSE 0 END AS g
  FROM bid WINDOW by_time AS (PARTITION BY who ORDER BY ts)
), sessions AS (
  SELECT who, ts, sum(g) OVER (PARTITION BY who ORDER BY ts RANGE UNBOUNDED PRECEDING) AS s FROM gaps
)
SELECT who AS bidder, count(*) AS bids, min(ts) AS start, max(ts) + INTERVAL '2 seconds' AS end
FROM sessions GROUP BY who, s

--- q12 | update 2
SELECT who AS bidder, window, count(*) AS bids /*due , max(ts) AS due */
FROM bid GROUP BY who, window(current_timestamp(), '10 seconds')
>>>
SELECT who AS bidder, NULL AS window, count(*) AS bids FROM bid GROUP BY who

--- q13
SELECT b.id AS auction, b.who AS bidder, b.price, b.ts, s.value
FROM bid b JOIN side_input s ON b.id % 10000 = s.key

--- q14
SELECT id AS auction, who AS bidder, 0.908 * price AS price,
  CASE
    WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime'
    WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS kind, ts, extra,
  length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000

--- q15 | update 1
SELECT date_format(ts, 'yyyy-MM-dd') AS day, count(*) AS bids, count(DISTINCT who) AS bidders
FROM bid GROUP BY 1

--- q16 | update 2
SELECT channel, date_format(ts, 'yyyy-MM-dd') AS day, count(DISTINCT who) AS bidders
FROM bid GROUP BY 1, 2

--- q17 | update 2
SELECT id AS auction, date_format(ts, 'yyyy-MM-dd') AS day, count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS low,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
  count(*) FILTER (WHERE price >= 1000000) AS high,
  min(price) AS least, max(price) AS most, avg(price) AS mean, sum(price) AS total
  /*due , max(ts) AS due */
FROM bid GROUP BY 1, 2
>>>
SELECT id AS auction, strftime(ts, '%Y-%m-%d') AS day, count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS low,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
  count(*) FILTER (WHERE price >= 1000000) AS high,
  min(price) AS least, max(price) AS most, avg(price) AS mean, sum(price) AS total
FROM bid GROUP BY 1, 2

--- q18
SELECT id, who, price
FROM (SELECT *, row_number() OVER (PARTITION BY who, id ORDER BY ts DESC) AS place FROM bid)
WHERE place = 1

--- q19
SELECT *
FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC) AS place FROM bid)
WHERE place <= 10

--- q20
SELECT b.id AS auction, b.who AS bidder, b.price, b.channel, a.who AS seller, a.expires
  /*due , greatest(a.ts, b.ts) AS due */
FROM bid b JOIN auction a ON b.id = a.id
WHERE a.category = 10

--- q21
SELECT id AS auction, who AS bidder, price, channel,
  CASE
    WHEN lower(channel) = 'apple' THEN '0'
    WHEN lower(channel) = 'google' THEN '1'
    WHEN lower(channel) = 'facebook' THEN '2'
    WHEN lower(channel) = 'baidu' THEN '3'
    ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
  END AS channel_id /*due , ts AS due */
FROM bid
WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
  OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')

--- q22
SELECT id AS auction, who AS bidder, price, channel,
  split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
  /*due , ts AS due */
FROM bid
