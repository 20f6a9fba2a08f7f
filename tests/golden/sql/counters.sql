-- Sharded counters. First a floor that is on the total only (two sessions' worth of spread keys: MurmurHash3 x86 32 mod 8
-- sends u1..u5 to 0, 5, 1, 5, 6 and v1..v5 to 1, 5, 3, 6, 3).
CREATE SCHEMA shop;
SET search_path = shop, public;
SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}', shards => 8, floors => '{"n": 0}');
SELECT lanes.create_sharded_counter('raw', '{post int}', '{n}', shards => 8);
CREATE FUNCTION bump(p int, s text, d bigint) RETURNS void LANGUAGE sql AS $$ SELECT likes_add(p, d, s); SELECT raw_add(p, d, s) $$;
CREATE FUNCTION total(p int) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce((SELECT n FROM likes_total WHERE post = p), 0) || ' (' || coalesce((SELECT n FROM raw_total WHERE post = p), 0) || ')' $$;
SELECT count(bump(1, 'u' || g, 1)) FROM generate_series(1, 5) AS g;
SELECT count(bump(1, 'v' || g, -1)) FROM generate_series(1, 5) AS g;
-- Five up, five down; the row of shard 3 is at -2, and nobody minds.
SELECT total(1), (SELECT n FROM likes WHERE post = 1 AND shard_id = 3) AS shard_3, (SELECT n FROM likes WHERE post = 1 AND shard_id = 0) AS shard_0;
-- -1 shows as 0, and the floor forgets nothing: one up again is 0, not 1.
SELECT bump(1, 'v1', -1);
SELECT total(1);
SELECT bump(1, 'u1', 1);
SELECT total(1);
SELECT bump(1, 'u2', 4);
SELECT total(1);
-- The edge of bigint: two rows add up to more than one can hold; a row that would pass it is an error, and nothing is half written.
SELECT bump(2, 'u1', 9223372036854775807);
SELECT bump(2, 'v3', 1);
SELECT total(2);
SELECT * FROM failure($$ SELECT bump(2, 'u1', 1) $$) \gx
SELECT * FROM failure($$ SELECT likes_add_many('{2,3,3}', '{1,9223372036854775807,1}', 'u1') $$) \gx
SELECT total(2), total(3);
-- Folding keeps every total, also one that does not fit one row.
SELECT lanes.compact_counter('likes', '1 hour') AS still_warm;
SELECT lanes.compact_counter('likes', '0 s'), lanes.compact_counter('likes', '0 s') AS nothing_left;
SELECT post, count(*), sum(n), sum(bumps) AS bumps FROM likes GROUP BY post ORDER BY post;
SELECT total(1), total(2);

-- What was made: one table, one view with the reader's rights, two functions; nothing of it belongs to the extension.
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, col_description(a.attrelid, a.attnum) FROM pg_attribute AS a
WHERE a.attrelid = 'likes'::regclass AND a.attnum > 0 ORDER BY a.attnum;
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'likes'::regclass ORDER BY conname;
SELECT relname, reloptions, obj_description(oid, 'pg_class') FROM pg_class WHERE relname IN ('likes', 'likes_total') ORDER BY relname;
SELECT col_description('likes_total'::regclass, 2);
SELECT p.oid::regprocedure, pg_get_function_arguments(p.oid), proacl, prosecdef, proconfig, obj_description(p.oid, 'pg_proc')
FROM pg_proc AS p WHERE proname LIKE 'likes\_%' ORDER BY proname;
SELECT count(*) FROM pg_depend WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
    AND objid IN (SELECT oid FROM pg_class WHERE relnamespace = 'shop'::regnamespace UNION ALL SELECT oid FROM pg_proc WHERE pronamespace = 'shop'::regnamespace);

-- Several keys and counters, with names that need quotes or are those of aliases in the functions; each call may name what it adds.
SELECT lanes.create_sharded_counter('shop."Day load"', ARRAY['c text', '"k day" date', 'weight numeric(6,2)'], '{k,"N o"}', shards => 4, spread => 'random');
SELECT "Day load_add"('x', '2026-01-02', 1.505, 2, 3), "Day load_add"('x', '2026-01-02', 1.51, "N o" => -1), "Day load_add"('x', '2026-01-02', 1.51);
SELECT "Day load_add_many"('{y,x,y}', '{2026-01-03,2026-01-02,2026-01-03}', '{1,1.505,1.001}', '{10,20,30}');
SELECT "Day load_add_many"('{y}', '{2026-01-03}', '{1}', "N o" => '{7}');
SELECT "Day load_add_many"('{}', '{}', '{}');
SELECT * FROM "Day load_total" ORDER BY c;
-- One counter counts one by default.
SELECT raw_add(9), raw_add_many('{9,8,9}');
SELECT * FROM raw_total WHERE post IN (8, 9) ORDER BY post;
-- With spread key every call names it.
SELECT lanes.create_sharded_counter('votes', '{poll int}', '{votes}', shards => 8, spread => 'key');
SELECT count(votes_add(1, spread => 'user' || g)) FROM generate_series(1, 400) AS g;
SELECT * FROM failure($$ SELECT votes_add(1) $$) \gx
SELECT * FROM failure($$ SELECT votes_add_many('{1}', '{1}') $$) \gx
SELECT poll, count(*) AS shards FROM votes GROUP BY poll;

-- skew: 400 writers spread well; then one of them writes 400 times more; then keys that spread by themselves.
SELECT sum("rows") AS rows, sum(writes) AS writes, round(sum(share), 2) AS share, string_agg(DISTINCT verdict, ', ') AS verdicts, count(*) FROM lanes.skew('votes');
SELECT count(votes_add(1, spread => 'user1')) FROM generate_series(1, 400);
SELECT shard = shard('user1', 8) AS is_of_user1, verdict ~ '^hot: [4-5]\.\d times' AS hot FROM lanes.skew('votes') WHERE verdict <> 'even';
SELECT count(votes_add(p, spread => p::text)) FROM generate_series(2, 40) AS p, generate_series(1, 70);
DELETE FROM votes WHERE poll = 1;
SELECT DISTINCT verdict FROM lanes.skew('votes');
-- More or fewer shards, without moving a row: totals stay, and rows above the number go when their key is folded.
SELECT lanes.create_sharded_counter('seen', '{page text}', '{seen}', shards => 8, spread => 'key');
SELECT count(seen_add('p', spread => 'v' || g)) FROM generate_series(1, 5) AS g;
SELECT lanes.set_counter_shards('seen', 2, 'key');
SELECT count(seen_add('p', spread => 'v' || g)) FROM generate_series(1, 5) AS g;
SELECT array_agg(shard_id ORDER BY shard_id) AS shards, sum(seen) FROM seen;
SELECT count(*), max(shard) AS greatest FROM lanes.skew('seen');
SELECT lanes.compact_counter('seen', '0 s');
SELECT shard_id, seen FROM seen;
SELECT lanes.set_counter_shards('seen', 300);
SELECT seen_add('p', 5, 'v1');
SELECT shard_id <> 1 AS elsewhere FROM seen WHERE seen = 5;
-- Keys whose rows are all above a lowered number are folded too, and no key waits for them (v2 writes row 5, v3 and v5 row 3, v1 row 1,
-- u1 row 0, u2 row 5).
SELECT lanes.create_sharded_counter('clicks', '{ad int}', '{n}', shards => 8, spread => 'key');
SELECT count(clicks_add(ad, 1, s)) FROM generate_series(1, 10) AS ad, unnest('{v2,v3,v5}'::text[]) AS s;
SELECT count(clicks_add(99, 1, s)) FROM unnest('{u1,u2}'::text[]) AS s;
SELECT lanes.set_counter_shards('clicks', 2, 'key');
SELECT lanes.compact_counter('clicks', '0 s', 5), lanes.compact_counter('clicks', '0 s', 5), lanes.compact_counter('clicks', '0 s', 5),
    lanes.compact_counter('clicks', '0 s', 5) AS nothing_left;
SELECT ad > 10 AS is_last, shard_id, count(*), sum(n) FROM clicks GROUP BY 1, 2 ORDER BY 1, 2;
-- In a counter of 0.3.0 the check lets no row above be written: such keys are folded once they have one below.
SELECT count(clicks_add(ad, 1, 'v1')) FROM generate_series(1, 10) AS ad;
SELECT lanes.compact_counter('clicks', '0 s');
SELECT lanes.set_counter_shards('clicks', 8, 'key');
SELECT count(clicks_add(ad, 1, s)) FROM generate_series(11, 20) AS ad, unnest('{v2,v3,v5}'::text[]) AS s;
SELECT count(clicks_add(99, 1, s)) FROM unnest('{u1,u2}'::text[]) AS s;
SELECT lanes.set_counter_shards('clicks', 2, 'key');
ALTER TABLE clicks DROP CONSTRAINT shard_id_range, ADD CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND shard_id < 2) NOT VALID;
SELECT lanes.compact_counter('clicks', '0 s', 5), lanes.compact_counter('clicks', '0 s', 5) AS nothing_left;
SELECT count(*), sum(n) FROM clicks WHERE ad BETWEEN 11 AND 20;
SELECT count(clicks_add(ad, 1, 'v1')) FROM generate_series(11, 20) AS ad;
SELECT lanes.compact_counter('clicks', '0 s') > 0 AS folded;
SELECT ad > 10 AS is_later, max(shard_id) < 2 AS below, count(*), sum(n) FROM clicks GROUP BY 1 ORDER BY 1;
SELECT lanes.set_counter_shards('clicks', 2, 'key');
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'clicks'::regclass AND conname = 'shard_id_range';
-- Any table with a shard column.
CREATE TABLE items (id int, bucket int);
INSERT INTO items SELECT g, CASE WHEN g <= 90 THEN 2 ELSE g % 4 END FROM generate_series(1, 130) AS g;
INSERT INTO items VALUES (0, NULL);
SELECT * FROM lanes.skew('items', 'bucket', 5);

SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{n}', shards => 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{n}', shards => 4097) $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{n}', shards => NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{}', '{n}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post}', '{n}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post thing}', '{n}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', ARRAY['post int); DROP TABLE shop.likes; --'], '{n}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{bumps}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{post}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{""}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{n}', spread => 'dice') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{n}', floors => '{"m": 0}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter('a.b.c', '{post int}', '{n}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sharded_counter(repeat('x', 55), '{post int}', '{n}') $$) \gx
SET search_path = '';
SELECT * FROM public.failure($$ SELECT lanes.create_sharded_counter('x', '{post int}', '{n}') $$) \gx
SET search_path = shop, public;
SELECT * FROM failure($$ SELECT raw_add_many('{1,2}', '{1}') $$) \gx
SELECT * FROM failure($$ SELECT raw_add_many('{1,2}', '{1,NULL}') $$) \gx
SELECT * FROM failure($$ SELECT raw_add_many(NULL, '{1}') $$) \gx
SELECT code, message FROM failure($$ SELECT raw_add(NULL, 1) $$) \gx
SELECT code, message FROM failure($$ SELECT raw_add(1, NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.compact_counter('items') $$) \gx
SELECT * FROM failure($$ SELECT lanes.compact_counter('likes_total') $$) \gx
SELECT * FROM failure($$ SELECT lanes.compact_counter('likes', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.compact_counter('likes', '1 h', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.set_counter_shards('likes', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.set_counter_shards('items', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.skew('items') $$) \gx
SELECT * FROM failure($$ SELECT lanes.skew('items', 'bucket', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.skew(NULL) $$) \gx
ALTER TABLE likes ADD note text;
SELECT * FROM failure($$ SELECT lanes.compact_counter('likes', '0 s') $$) \gx
-- Nobody writes unasked; with EXECUTE and the table's rights anybody can.
CREATE ROLE golden_counting;
GRANT USAGE ON SCHEMA shop TO golden_counting;
SET ROLE golden_counting;
SELECT * FROM failure($$ SELECT raw_add(1) $$) \gx
RESET ROLE;
GRANT EXECUTE ON FUNCTION raw_add TO golden_counting;
GRANT SELECT, INSERT, UPDATE ON raw TO golden_counting;
SET ROLE golden_counting;
SELECT raw_add(1);
RESET ROLE;
-- What its owner grants stays when the number of shards changes; a function that has to be made again is for nobody.
GRANT EXECUTE ON FUNCTION raw_add, raw_add_many TO PUBLIC;
DROP FUNCTION raw_add_many;
SELECT lanes.set_counter_shards('raw', 4);
SELECT p, has_function_privilege('public', p, 'EXECUTE') FROM unnest('{raw_add,raw_add_many}'::regproc[]) AS p;
-- Names are names, whatever stands in them and whoever chose them.
CREATE ROLE m;
GRANT CREATE, USAGE ON SCHEMA shop TO m;
SET ROLE m;
CREATE TABLE traps (
    "$body$SET check_function_bodies=off;ALTER ROLE m SUPERUSER;/*" int, "*/SELECT $z$" int, shard_id int,
    n bigint NOT NULL, bumps bigint NOT NULL, bumped_at timestamptz NOT NULL,
    CONSTRAINT "$z$;SELECT $body$" PRIMARY KEY (
        "$body$SET check_function_bodies=off;ALTER ROLE m SUPERUSER;/*", "*/SELECT $z$", shard_id),
    CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND shard_id < 8));
RESET ROLE;
SELECT lanes.set_counter_shards('traps', 4);
SELECT rolsuper FROM pg_roles WHERE rolname = 'm';
SELECT traps_add(1, 2), traps_add_many('{1,3}', '{2,4}');
SELECT "*/SELECT $z$" AS key, sum(n) FROM traps GROUP BY 1 ORDER BY 1;
DROP OWNED BY golden_counting, m;
DROP ROLE golden_counting, m;
SET client_min_messages = warning;
DROP SCHEMA shop CASCADE;
