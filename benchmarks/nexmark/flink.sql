-- Nexmark as Flink SQL: those queries that Spark accepts as streams. A comment
-- `due` says when a result was due; see texts.py. Views: bid, auction,
-- person, side_input; at_time is ts without its meaning to Flink, which joins refuse.

--- q0
SELECT id AS auction, who AS bidder, price, ts, extra FROM bid

--- q1
SELECT id AS auction, who AS bidder, 0.908 * price AS price, ts, extra FROM bid

--- q2
SELECT id AS auction, price /*due , ts AS due */ FROM bid WHERE MOD(id, 123) = 0

--- q3
SELECT p.name, p.city, p.state, a.id /*due , GREATEST(a.at_time, p.at_time) AS due */
FROM auction a JOIN person p ON a.who = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')

--- q5
SELECT bids.auction, bids.num /*due , bids.window_end + INTERVAL '4' SECOND AS due */
FROM (
  SELECT id AS auction, COUNT(*) AS num, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY id, window_start, window_end
) bids
JOIN (
  SELECT MAX(num) AS top, window_start, window_end
  FROM (
    SELECT COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY id, window_start, window_end
  )
  GROUP BY window_start, window_end
) best
ON bids.window_start = best.window_start AND bids.window_end = best.window_end
  AND bids.num >= best.top

--- q7
SELECT b.id AS auction, b.price, b.who AS bidder, b.ts /*due , m.wt + INTERVAL '4' SECOND AS due */
FROM bid b
JOIN (
  SELECT MAX(price) AS top, window_time AS wt
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end, window_time
) m ON b.price = m.top AND b.ts BETWEEN m.wt - INTERVAL '10' SECOND AND m.wt

--- q8
SELECT p.id, p.name, p.window_start /*due , p.window_end + INTERVAL '4' SECOND AS due */
FROM (
  SELECT id, name, window_start, window_end
  FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY id, name, window_start, window_end
) p
JOIN (
  SELECT who, window_start, window_end
  FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY who, window_start, window_end
) a ON p.id = a.who AND p.window_start = a.window_start AND p.window_end = a.window_end

--- q10
SELECT id AS auction, who AS bidder, price, ts, extra,
  DATE_FORMAT(ts, 'yyyy-MM-dd') AS on_day, DATE_FORMAT(ts, 'HH:mm') AS at_minute
FROM bid

--- q11
SELECT who AS bidder, COUNT(*) AS bids, window_start, window_end
  /*due , window_end + INTERVAL '4' SECOND AS due */
FROM TABLE(SESSION(TABLE bid PARTITION BY who, DESCRIPTOR(ts), INTERVAL '2' SECOND))
GROUP BY who, window_start, window_end

--- q12
SELECT who AS bidder, window_start, COUNT(*) AS bids /*due , window_end AS due */
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(processed), INTERVAL '10' SECOND))
GROUP BY who, window_start, window_end

--- q13
SELECT b.id AS auction, b.who AS bidder, b.price, b.at_time AS ts, s.`value`
FROM bid b JOIN side_input s ON MOD(b.id, 10000) = s.`key`

--- q14
SELECT id AS auction, who AS bidder, 0.908 * price AS price,
  CASE
    WHEN HOUR(ts) >= 8 AND HOUR(ts) <= 18 THEN 'dayTime'
    WHEN HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS kind, ts, extra,
  CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000

--- q17
SELECT id AS auction, DATE_FORMAT(ts, 'yyyy-MM-dd') AS on_day, COUNT(*) AS bids,
  COUNT(*) FILTER (WHERE price < 10000) AS low,
  COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
  COUNT(*) FILTER (WHERE price >= 1000000) AS high,
  MIN(price) AS least, MAX(price) AS most, AVG(CAST(price AS DOUBLE)) AS mean, SUM(price) AS total
  /*due , MAX(at_time) AS due */
FROM bid GROUP BY id, DATE_FORMAT(ts, 'yyyy-MM-dd')

--- q20
SELECT b.id AS auction, b.who AS bidder, b.price, b.channel, a.who AS seller, a.expires
  /*due , GREATEST(a.at_time, b.at_time) AS due */
FROM bid b JOIN auction a ON b.id = a.id
WHERE a.category = 10

--- q21
SELECT id AS auction, who AS bidder, price, channel,
  CASE
    WHEN LOWER(channel) = 'apple' THEN '0'
    WHEN LOWER(channel) = 'google' THEN '1'
    WHEN LOWER(channel) = 'facebook' THEN '2'
    WHEN LOWER(channel) = 'baidu' THEN '3'
    ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
  END AS channel_id /*due , ts AS due */
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
  OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')

--- q22
SELECT id AS auction, who AS bidder, price, channel,
  SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
  SPLIT_INDEX(url, '/', 5) AS dir3
  /*due , ts AS due */
FROM bid
