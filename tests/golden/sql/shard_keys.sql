-- Write sharding: sharded keys, and how many of them a rate needs.
-- shard('order-42', 10) and the others are pinned by hashing.sql; here they must only agree.
SELECT shard_key('STATUS#pending', 'order-42', 10) = 'STATUS#pending#' || shard('order-42', 10) AS text,
    shard_key('k', '123e4567-e89b-12d3-a456-426614174000'::uuid, 10) = shard_key('k', '123e4567-e89b-12d3-a456-426614174000'::text, 10) AS uuid,
    shard_key('k', 42::bigint, 10) = shard_key('k', '42', 10) AS bigint, shard_key('k', 42, 10) = shard_key('k', '42', 10) AS int,
    shard_key('k', 42::smallint, 10) = shard_key('k', '42', 10) AS smallint, shard_key('k', 'a'::bytea, 10) = shard_key('k', 'a', 10) AS bytea;
SELECT shard_key('', '', 1), shard_key('Größe', 'ü', 1), shard_key(NULL, 'x', 1) IS NULL AS null_key;
SELECT shard_keys('STATUS#pending', 10);
SELECT cardinality(shard_keys('k', 65536)), shard_keys('k', NULL) IS NULL AS null_count;
-- Every key that is written is one of those that are read.
SELECT count(*) FROM generate_series(1, 1000) AS id WHERE shard_key('k', id, 7) = ANY (shard_keys('k', 7));
SELECT count(*), count(DISTINCT k) FROM (SELECT random_shard_key('k', 7) AS k FROM generate_series(1, 1000)) AS r WHERE k = ANY (shard_keys('k', 7));
-- setseed makes it repeatable.
SELECT setseed(0.5);
SELECT string_agg(random_shard_key('k', 100), ' ') AS drawn FROM generate_series(1, 20) \gset
SELECT setseed(0.5);
SELECT string_agg(random_shard_key('k', 100), ' ') = :'drawn' AS repeated FROM generate_series(1, 20);
SELECT * FROM shard_of_key('STATUS#pending#3');
SELECT * FROM shard_of_key('#2147483647');
SELECT (shard_of_key(k)).* FROM unnest('{a#0,a#b#1,##2}'::text[]) AS k;
-- ceil(rate / 1000 * 2.5): 2.4975, 2.5, 10, 25, 125, 500. Bands: none under 1000, 8-16 to 10000, 32-64 to 100000, then 64-256.
SELECT rate, s.* FROM unnest('{0,999,1000,4000,10000,50000,200000}'::bigint[]) AS rate, suggest_shards(rate) AS s;
SELECT * FROM suggest_shards(10, 1, 1.1);
SELECT * FROM suggest_shards(4000, headroom => 1);

SELECT * FROM failure($$ SELECT shard_key('k', 'x', 0) $$) \gx
SELECT * FROM failure($$ SELECT shard_keys('k', 0) $$) \gx
SELECT * FROM failure($$ SELECT shard_keys('k', 65537) $$) \gx
SELECT * FROM failure($$ SELECT random_shard_key('k', -1) $$) \gx
SELECT * FROM failure($$ SELECT shard_of_key('pending') $$) \gx
SELECT * FROM failure($$ SELECT shard_of_key('pending#03') $$) \gx
SELECT * FROM failure($$ SELECT suggest_shards(-1) $$) \gx
SELECT * FROM failure($$ SELECT suggest_shards(1, 0) $$) \gx
SELECT * FROM failure($$ SELECT suggest_shards(1, 1, 0.5) $$) \gx
SELECT * FROM failure($$ SELECT suggest_shards(1, 1, 'NaN') $$) \gx
SELECT * FROM failure($$ SELECT suggest_shards(9223372036854775807, 1) $$) \gx
