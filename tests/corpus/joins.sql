-- Joins of two streams. A header has the query's name and, unless it is append, its mode and key columns.

--- inner join without watermark
SELECT e.id, p.pid FROM events e JOIN payments p ON e.id = p.event_id;

--- inner join on expression
SELECT e.id, p.pid FROM events e JOIN payments p ON e.id + 1 = p.event_id + 1;

--- inner join on two keys
SELECT e.id, p.pid FROM events e JOIN payments p ON e.user = p.payer AND e.id = p.event_id;

--- inner join with condition
SELECT e.id, p.pid FROM events e JOIN payments p ON e.id = p.event_id AND e.amount > p.sum;

--- inner join with one sided condition
SELECT e.id, p.pid FROM events e JOIN payments p ON e.id = p.event_id AND e.qty > 0 AND p.method =
'card';

--- inner join with time bounds
SELECT id, pid FROM events_w JOIN payments_w ON user = payer AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- inner join on event time
SELECT id, pid FROM events_w JOIN payments_w ON at = paid_at;

--- inner join on windows
SELECT id, pid FROM (SELECT *, window(at, '5 seconds') AS w FROM events_w) e JOIN (SELECT *,
window(paid_at, '5 seconds') AS v FROM payments_w) p ON e.w = p.v AND user = payer;

--- inner join with one watermark
SELECT id, pid FROM events_w JOIN payments ON at = paid_at;

--- semi join with one watermark
SELECT id FROM events_w LEFT SEMI JOIN payments ON at = paid_at;

--- right join on windows
SELECT id, pid FROM (SELECT *, window(at, '5 seconds') AS w FROM events_w) e RIGHT JOIN (SELECT *,
window(paid_at, '5 seconds') AS v FROM payments_w) p ON e.w = p.v AND user = payer;

--- semi join on windows
SELECT id FROM (SELECT *, window(at, '5 seconds') AS w FROM events_w) e LEFT SEMI JOIN (SELECT *,
window(paid_at, '5 seconds') AS v FROM payments_w) p ON e.w = p.v AND user = payer;

--- full join on doubles
SELECT id, other FROM events_w FULL JOIN (SELECT score AS points, id AS other, at AS then FROM
events_w) ON score = points AND then BETWEEN at AND at + INTERVAL '5' SECOND;

--- left join with time bounds
SELECT id, pid FROM events_w LEFT JOIN payments_w ON user = payer AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- right join with time bounds
SELECT id, pid FROM events_w RIGHT JOIN payments_w ON user = payer AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- full join with time bounds
SELECT id, pid FROM events_w FULL JOIN payments_w ON user = payer AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- semi join with time bounds
SELECT id, at FROM events_w LEFT SEMI JOIN payments_w ON user = payer AND paid_at BETWEEN at AND
at + INTERVAL '5' SECOND;

--- left join on event id
SELECT id, pid, sum FROM events_w LEFT JOIN payments_w ON id = event_id AND paid_at BETWEEN at AND
at + INTERVAL '5' SECOND;

--- left join with one sided condition
SELECT id, pid FROM events_w LEFT JOIN payments_w ON id = event_id AND qty > 0 AND paid_at BETWEEN
at AND at + INTERVAL '5' SECOND;

--- left join with window key
SELECT id, pid FROM (SELECT *, window(at, '5 seconds') AS w FROM events_w) e LEFT JOIN (SELECT *,
window(paid_at, '5 seconds') AS v FROM payments_w) p ON e.w = p.v AND user = payer;

--- right join on event id
SELECT id, pid FROM events_w RIGHT JOIN payments_w ON id = event_id AND paid_at BETWEEN at AND at
+ INTERVAL '5' SECOND;

--- full join on event id
SELECT id, pid FROM events_w FULL JOIN payments_w ON id = event_id AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- semi join on event id
SELECT id FROM events_w LEFT SEMI JOIN payments_w ON id = event_id AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- join then projection
SELECT upper(user) AS u, sum * 2 AS twice FROM events_w JOIN payments_w ON id = event_id AND
paid_at BETWEEN at AND at + INTERVAL '5' SECOND WHERE qty > 0;

--- self join
SELECT a.id, b.id AS other FROM events a JOIN events b ON a.id = b.id + 1;

--- join then aggregate
SELECT window, count(*) AS n FROM (SELECT window(at, '10 seconds') AS window, id FROM events_w
JOIN payments_w ON user = payer AND paid_at BETWEEN at AND at + INTERVAL '5' SECOND) GROUP BY
window;

--- aggregate then join
SELECT l.window, l.n, r.m FROM (SELECT window, count(*) AS n FROM events_w GROUP BY window(at, '10
seconds')) l JOIN (SELECT window, count(*) AS m FROM payments_w GROUP BY window(paid_at, '10
seconds')) r ON l.window = r.window;

--- join of a union
SELECT id, pid FROM (SELECT id, user, at FROM events_w WHERE qty > 0 UNION ALL SELECT id, user, at
FROM events_w WHERE qty <= 0) JOIN payments_w ON user = payer AND paid_at BETWEEN at AND at +
INTERVAL '5' SECOND;

--- static join above a join
SELECT id, pid, city FROM events_w JOIN payments_w ON id = event_id AND paid_at BETWEEN at AND at
+ INTERVAL '5' SECOND LEFT JOIN users ON user = name;
