-- Joins of a stream with a table. A header has the query's name and, unless it is append, its mode and key columns.

--- static inner join
SELECT e.id, u.city FROM events e JOIN users u ON e.user = u.name;

--- static left join
SELECT e.id, u.city, u.level FROM events e LEFT JOIN users u ON e.user = u.name;

--- static semi join
SELECT e.id FROM events e LEFT SEMI JOIN users u ON e.user = u.name;

--- static anti join
SELECT e.id FROM events e LEFT ANTI JOIN users u ON e.user = u.name;

--- static in subquery
SELECT id FROM events WHERE user IN (SELECT name FROM users WHERE level > 1);

--- static exists
SELECT id FROM events e WHERE EXISTS (SELECT 1 FROM users u WHERE u.name = e.user);

--- static join with condition
SELECT e.id, u.level FROM events e JOIN users u ON e.user = u.name AND e.qty > u.level;

--- static join on expression
SELECT e.id, u.level FROM events e JOIN users u ON upper(e.user) = upper(u.name);

--- static right side stream
SELECT u.city, e.id FROM users u JOIN events e ON e.user = u.name;

--- static right join
SELECT u.city, e.id FROM users u RIGHT JOIN events e ON e.user = u.name;

--- static cross join
SELECT e.id, u.city FROM events e CROSS JOIN (SELECT * FROM users WHERE level < 3) u;

--- static join by range
SELECT e.id, u.level FROM events e JOIN users u ON e.qty < u.level;

--- static null safe join
SELECT e.id, u.city FROM events e JOIN users u ON e.user <=> u.name;

--- static join then aggregate | update 1
SELECT u.city, count(*) AS n FROM events e JOIN users u ON e.user = u.name GROUP BY u.city;
