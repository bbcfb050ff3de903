-- Aggregations that use no column of their stream. A header has the query's name and, unless it is append, its mode and key columns.

--- count of all rows | update 0
SELECT count(*) AS n FROM events;

--- count of all rows, complete | complete 0
SELECT count(*) AS n FROM events;

--- count of some rows | update 0
SELECT count(*) AS n FROM events WHERE qty > 10;

--- counts of several kinds | update 0
SELECT count(*) AS n, count(NULL) AS z, sum(2) AS s, max('x') AS m, count(*) FILTER (WHERE true) AS f FROM events;

--- count by a constant | update 1
SELECT k, count(*) AS n FROM (SELECT 'x' AS k FROM events) GROUP BY k;

--- rollup of a constant | update 1
SELECT k, count(*) AS n FROM (SELECT 'x' AS k FROM events) GROUP BY ROLLUP (k);

--- count of a cross join | update 0
SELECT count(*) AS n FROM events e CROSS JOIN users u;

--- count of a union | update 0
SELECT count(*) AS n FROM (SELECT id FROM events UNION ALL SELECT pid FROM payments);

--- count of generated rows | update 0
SELECT count(*) AS n FROM (SELECT explode(array(1, 2, 3)) FROM events);

--- count of joined rows | append 0
SELECT 1 AS a FROM events_w e JOIN payments_w p ON e.id = p.event_id AND p.paid_at BETWEEN e.at AND e.at + INTERVAL 5 SECONDS;

--- distinct constants | update 1
SELECT DISTINCT 1 AS a FROM events;
