-- Lists of aggregates. Each runs twice: by user in update mode, by window in append mode.

--- count
count(*) AS a, count(qty) AS b;

--- count if
count_if(flag) AS a;

--- sum of ints
sum(qty) AS a, sum(total) AS b;

--- sum of doubles
sum(score) AS a, sum(ratio) AS b;

--- sum of decimals
sum(amount) AS a, sum(small) AS b, sum(big) AS c;

--- avg
avg(qty) AS a, avg(score) AS b;

--- avg of decimals
avg(amount) AS a, avg(small) AS b, avg(big) AS c;

--- min and max
min(qty) AS a, max(qty) AS b, min(score) AS c, max(score) AS d, min(kind) AS e, max(at) AS f,
min(day) AS g, max(amount) AS h;

--- min of structs
min(place) AS a, max(struct(qty, id)) AS b;

--- bool_and and bool_or
bool_and(flag) AS a, bool_or(flag) AS b, every(qty > 0) AS c, some(qty > 0) AS d;

--- max_by
max_by(id, struct(at, id)) AS a, min_by(id, struct(at, id)) AS b;

--- stddev
stddev(qty) AS a, stddev_pop(qty) AS b, variance(qty) AS c, var_pop(qty) AS d;

--- covariance
covar_pop(qty, score) AS a, covar_samp(qty, score) AS b;

--- approx_count_distinct
approx_count_distinct(id) AS a, approx_count_distinct(kind) AS b, approx_count_distinct(amount,
0.02) AS c;

--- collect_list
sort_array(collect_list(qty)) AS a;

--- collect_set
sort_array(collect_set(kind)) AS a, size(collect_set(qty)) AS b;

--- bit aggregates
bit_and(qty) AS a, bit_or(qty) AS b, bit_xor(qty) AS c;

--- filter
count(*) FILTER (WHERE qty > 0) AS a, sum(qty) FILTER (WHERE flag) AS b, max(score) FILTER (WHERE
kind = 'buy') AS c;

--- expressions over aggregates
sum(qty) + max(qty) AS a, sum(qty) / count(*) AS b, round(avg(score), 2) AS c;

--- aggregates of expressions
sum(qty * 2 + 1) AS a, max(length(payload)) AS b, count(CASE WHEN kind = 'buy' THEN 1 END) AS c;

--- try_sum and try_avg
try_sum(total) AS a, try_avg(qty) AS b;

--- the same aggregate twice
sum(qty) AS a, sum(qty) + 1 AS b;

--- first
first(user) AS a, last(user) AS b, any_value(user) AS c;
