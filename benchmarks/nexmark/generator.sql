-- The events of an auction site, computed from their numbers. Plain enough for Spark, Flink and
-- DuckDB. Of 50 events one is a new person, three are new auctions and 46 are bids, as in Nexmark.
-- {numbers} has two columns: value (0, 1, 2, …) and ts (the time of the event).
SELECT
  value,
  ts,
  CASE WHEN value % 50 = 0 THEN 'person' WHEN value % 50 < 4 THEN 'auction' ELSE 'bid' END AS kind,
  -- persons and auctions: their own id; bids: the auction
  CASE
    WHEN value % 50 = 0 THEN 1000 + CAST((value - value % 50) / 50 AS BIGINT)
    WHEN value % 50 < 4 THEN 1000 + CAST((value - value % 50) / 50 AS BIGINT) * 3 + value % 50 - 1
    WHEN value % 2 = 0 THEN 1000 + CAST((value - value % 5000) / 50 AS BIGINT) * 3
    ELSE 1000 + CAST((value - value % 50) / 50 AS BIGINT) * 3 - (value * 7919) % 100
  END AS id,
  -- auctions: the seller; bids: the bidder; both are recent persons, some of them hot
  CASE
    WHEN value % 50 = 0 THEN NULL
    WHEN value % 3 = 0 THEN 1000 + CAST((value - value % 5000) / 50 AS BIGINT)
    ELSE 1000 + CAST((value - value % 50) / 50 AS BIGINT) - (value * 104729) % 50
  END AS who,
  100 + (value * 15485863) % 99999989 AS price,
  10 + CAST((value - value % 50) / 50 AS BIGINT) % 5 AS category,
  ts + INTERVAL '5' SECOND AS expires,
  CASE value % 6
    WHEN 0 THEN 'Apple' WHEN 1 THEN 'Google' WHEN 2 THEN 'Facebook' WHEN 3 THEN 'Baidu'
    ELSE CONCAT('channel-', CAST(value % 10000 AS VARCHAR(20)))
  END AS channel,
  CONCAT(
    'https://www.example.com/', CAST(value % 97 AS VARCHAR(20)), '/', CAST(value % 89 AS VARCHAR(20)),
    '/item.htm?query=1', CASE WHEN value % 6 > 3 THEN '&channel_id=' ELSE '&other=' END,
    CAST(value % 10000 AS VARCHAR(20))
  ) AS url,
  CONCAT('name-', CAST((value * 31) % 1009 AS VARCHAR(20))) AS name,
  CASE value % 7
    WHEN 0 THEN 'Phoenix' WHEN 1 THEN 'Portland' WHEN 2 THEN 'Boise' ELSE 'Bend'
  END AS city,
  CASE CAST((value - value % 50) / 50 AS BIGINT) % 6
    WHEN 0 THEN 'OR' WHEN 1 THEN 'ID' WHEN 2 THEN 'CA' WHEN 3 THEN 'AZ' WHEN 4 THEN 'WA' ELSE 'WY'
  END AS state,
  CONCAT('abc', CAST((value * 65537) % 1000003 AS VARCHAR(20)), 'xcc') AS extra
FROM {numbers}
