-- Aggregations: keys, windows, sessions, chains. A header has the query's name and, unless it is append, its mode and key columns.

--- no key, update | update 0
SELECT count(*) AS n, sum(qty) AS q FROM events;

--- no key, complete | complete 0
SELECT count(*) AS n, sum(qty) AS q FROM events;

--- by two keys, complete | complete 0
SELECT user, kind, count(*) AS n, sum(qty) AS q FROM events GROUP BY user, kind;

--- by expression | update 1
SELECT upper(user) AS k, count(*) AS n, sum(qty) AS q FROM events GROUP BY upper(user);

--- by struct | update 1
SELECT place, count(*) AS n, sum(qty) AS q FROM events GROUP BY place;

--- by double | update 1
SELECT score, count(*) AS n, sum(qty) AS q FROM events GROUP BY score;

--- by boolean and date | update 2
SELECT flag, day, count(*) AS n, sum(qty) AS q FROM events GROUP BY flag, day;

--- by decimal | update 1
SELECT small, count(*) AS n, sum(qty) AS q FROM events GROUP BY small;

--- by array | update 1
SELECT tags, count(*) AS n, sum(qty) AS q FROM events GROUP BY tags;

--- by json field | update 1
SELECT get_json_object(payload, '$.who') AS w, count(*) AS n, sum(qty) AS q FROM events GROUP BY 1;

--- by constant | update 2
SELECT user, 1 AS one, count(*) AS n, sum(qty) AS q FROM events GROUP BY user, 1, upper(user);

--- having | update 1
SELECT user, count(*) AS n, sum(qty) AS q FROM events GROUP BY user HAVING count(*) > 3;

--- filter above aggregate | update 1
SELECT * FROM (SELECT user, count(*) AS n, sum(qty) AS q FROM events GROUP BY user) WHERE n > 3;

--- aggregate of explode | update 1
SELECT tag, count(*) AS n FROM (SELECT explode(tags) AS tag FROM events) GROUP BY tag;

--- aggregate of union | update 1
SELECT who, count(*) AS n FROM (SELECT user AS who FROM events UNION ALL SELECT payer FROM
payments) GROUP BY who;

--- tumbling, update | update 1
SELECT window, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY window(at, '10 seconds');

--- tumbling, complete | complete 0
SELECT window, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY window(at, '10 seconds');

--- tumbling without watermark | update 1
SELECT window, count(*) AS n, sum(qty) AS q FROM events GROUP BY window(at, '10 seconds');

--- tumbling with start
SELECT window, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY window(at, '10 seconds', '10
seconds', '3 seconds');

--- sliding, append
SELECT window, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY window(at, '10 seconds', '5
seconds');

--- sliding, update | update 2
SELECT window, user, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY window(at, '20 seconds',
'5 seconds'), user;

--- sliding with odd step
SELECT window, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY window(at, '10 seconds', '3
seconds');

--- window start and end
SELECT window.start, window.end, user, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY
window(at, '10 seconds'), user;

--- key before window
SELECT user, window, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY user, window(at, '10
seconds');

--- by event time itself
SELECT at, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY at;

--- session, append
SELECT session_window, user, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY
session_window(at, '3 seconds'), user;

--- session, complete | complete 0
SELECT session_window, user, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY
session_window(at, '3 seconds'), user;

--- session with dynamic gap
SELECT session_window, user, count(*) AS n, sum(qty) AS q FROM events_w GROUP BY
session_window(at, CASE WHEN user = 'u0' THEN '1 second' ELSE '5 seconds' END), user;

--- session with many aggregates
SELECT session_window.start AS s, user, max(qty) AS a, avg(score) AS b,
sort_array(collect_list(id)) AS c FROM events_w GROUP BY session_window(at, '4 seconds'), user;

--- distinct sql | update 2
SELECT DISTINCT user, kind FROM events;

--- window of window
SELECT window(window, '30 seconds') AS w, sum(n) AS n FROM (SELECT window, user, count(*) AS n
FROM events_w GROUP BY window(at, '10 seconds'), user) GROUP BY window(window, '30 seconds');

--- aggregate of aggregate
SELECT window(window_time(window), '30 seconds') AS w, max(n) AS n FROM (SELECT window, count(*)
AS n FROM events_w GROUP BY window(at, '10 seconds')) GROUP BY 1;
