-- Queries with the Python functions of functions.py, in words that Spark and Flink share.

--- q1
SELECT id AS auction, who AS bidder, dollars(price) AS price, ts, extra FROM bid

--- q2
SELECT id AS auction, price FROM bid WHERE wanted(id)

--- q14
SELECT id AS auction, who AS bidder, 0.908 * price AS price,
  CASE
    WHEN HOUR(ts) >= 8 AND HOUR(ts) <= 18 THEN 'dayTime'
    WHEN HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS kind, ts, extra, count_c(extra) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000

--- q21
SELECT *
FROM (
  SELECT id AS auction, who AS bidder, price, channel, channel_id(channel, url) AS channel_id
  FROM bid
) known
WHERE channel_id <> ''
