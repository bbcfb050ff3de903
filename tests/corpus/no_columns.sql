-- Queries that use no column of their stream, so that rows without columns pass between operators. A header has the query's name and, unless it is append, its mode and key columns.

--- constants
SELECT 1 AS a, 'x' AS b FROM events;

--- constants of some rows
SELECT 1 AS a FROM events WHERE qty > 10;

--- time and chance
SELECT current_timestamp() > '2020-01-01' AS a, rand() < 2 AS b FROM events;

--- a branch by chance
SELECT CASE WHEN rand() < 2 THEN 'yes' ELSE 'no' END AS a FROM events;

--- a lambda over constants
SELECT transform(array(1, 2), x -> x + 1) AS a FROM events;

--- explode constants
SELECT explode(array(1, 2)) AS a FROM events;

--- explode nothing, outer
SELECT explode_outer(CAST(array() AS array<int>)) AS a FROM events WHERE qty > 10;

--- posexplode constants
SELECT posexplode(array('x', 'y')) FROM events;

--- explode a constant map
SELECT explode(map('x', 1, 'y', 2)) FROM events;

--- inline constants
SELECT inline(array(struct(1, 'a'), struct(2, 'b'))) FROM events;

--- stack constants
SELECT stack(2, 1, 2, 3, 4) FROM events;

--- json_tuple of a constant
SELECT json_tuple('{"a": 1, "b": 2}', 'a', 'b') FROM events;

--- lateral view over constants
SELECT a, b FROM events LATERAL VIEW explode(array(1, 2)) x AS a LATERAL VIEW explode(array(3, 4)) y AS b;

--- cross join, columns of the table
SELECT u.city FROM events e CROSS JOIN users u;

--- cross join, columns of the stream
SELECT e.id FROM events e CROSS JOIN users u;

--- cross join, stream on the right
SELECT u.city FROM users u CROSS JOIN events e;

--- cross join, no columns
SELECT 1 AS a FROM events e CROSS JOIN users u;

--- join on a condition of the table
SELECT u.level FROM events e JOIN users u ON u.level > 2;

--- left join with nothing
SELECT u.level FROM events e LEFT JOIN users u ON u.level > 100;

--- semi join without keys
SELECT 1 AS a FROM events e LEFT SEMI JOIN users u ON u.level > 2;

--- anti join without keys
SELECT 1 AS a FROM events e LEFT ANTI JOIN users u ON u.level > 100;
