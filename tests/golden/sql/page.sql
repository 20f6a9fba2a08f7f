-- Pages over row shards. A cursor is signed with the database's own key, so what is shown of it is whether there is one.
CREATE SCHEMA shop;
SET search_path = shop, public;
SET client_min_messages = warning;
CREATE TABLE runs (id int PRIMARY KEY, started timestamptz, name text, doc json);
INSERT INTO runs SELECT i, CASE WHEN i % 3 > 0 THEN '2026-03-01 00:00 UTC'::timestamptz + (i * 7 % 5) * interval '1 h' END, 'n' || i % 4, '{}'
FROM generate_series(1, 12) AS i;
SELECT lanes.add_shard_column('runs', 'id', 4);
CALL lanes.backfill_shard_column('runs');
SELECT lanes.page_index(NULL::runs, 'started');
CREATE INDEX ON runs (shard_id, started, id);

-- A page, the next, and so on until there is no cursor.
CREATE FUNCTION walk(order_by text, page_size int, filter jsonb DEFAULT NULL, time_from timestamptz DEFAULT NULL,
                     time_to timestamptz DEFAULT NULL, shard_column name DEFAULT NULL) RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
    place text;
    ids   text;
    pages text;
BEGIN
    LOOP
        SELECT string_agg((p.item).id::text, ' ' ORDER BY p.at), (array_agg(p.cursor ORDER BY p.at DESC))[1] INTO ids, place
        FROM lanes.page(NULL::runs, order_by, page_size, filter, place, time_from, time_to, shard_column)
            WITH ORDINALITY AS p (item, cursor, at);
        pages := concat_ws(' - ', pages, COALESCE(ids, 'nothing'));
        IF place IS NULL THEN RETURN pages; END IF;
    END LOOP;
END
$$;
SELECT (item).id, (item).started AT TIME ZONE 'UTC' AS started, (item).name, cursor IS NULL AS is_last
FROM lanes.page(NULL::runs, 'started desc nulls last, name', 5);
SELECT walk('started desc nulls last, name', 5);
SELECT string_agg(id::text, ' ' ORDER BY started DESC NULLS LAST, name, id) FROM runs;
SELECT count(*), count(cursor) FROM lanes.page(NULL::runs, 'started', 12);
SELECT count(*), count(cursor) FROM lanes.page(NULL::runs, 'started', 11);
SELECT count(*) FROM lanes.page(NULL::runs, 'started', filter => '[["id", ">", 100]]');
-- Each row but the last of all has a cursor, and a page of any size may begin after any of them.
SELECT cursor AS third FROM lanes.page(NULL::runs, 'id', 5) OFFSET 2 LIMIT 1 \gset
SELECT array_agg((item).id) FROM lanes.page(NULL::runs, 'id', 2, cursor => :'third');
SELECT array_agg((item).id) FROM lanes.page(NULL::runs, 'id', 100, cursor => :'third');
-- Without an order the key is one.
SELECT array_agg((item).id) FROM lanes.page(NULL::runs, page_size => 3);
SELECT array_agg((item).id) FROM lanes.page(NULL::runs, '', 3);
-- Whatever the shard column, or none with an index, the rows are the same.
SELECT walk('name desc, started nulls first', 5);
SELECT walk('name desc, started nulls first', 5, shard_column => 'shard_id');
SELECT walk('name desc, started nulls first', 5, shard_column => 'started');
SELECT walk('name desc, started nulls first', 5, shard_column => 'name');

-- Filters. Null is what it is in SQL.
SELECT walk('id', 10, '[["name", "=", "n1"]]'), walk('id', 10, '[["name", "<>", "n1"]]');
SELECT walk('id', 10, '[["id", "<", 3]]'), walk('id', 10, '[["id", "<=", "3"]]'), walk('id', 10, '[["id", ">=", 11]]'), walk('id', 10, '[["id", ">", 11]]');
SELECT walk('id', 10, '[["id", "in", [3, "5", 99]]]'), walk('id', 10, '[["id", "in", []]]');
SELECT walk('id', 10, '[["started", "is null"]]'), walk('id', 10, '[["started", "is not null"], ["name", "=", "n0"]]');
SELECT walk('id', 10, '[["doc", "is not null"], ["started", ">", "2026-03-01 03:00 UTC"]]');
SELECT walk('started', 2, '[["name", "in", ["n1", "n2"]]]');
SELECT walk('id', 10, '[["name", "=", "n1'' OR true --"]]');
-- Time windows: from and before.
SELECT walk('started', 2, NULL, '2026-03-01 01:00 UTC', '2026-03-01 03:00 UTC');
SELECT walk('started desc', 10, NULL, '2026-03-01 03:00 UTC'), walk('started desc', 10, NULL, NULL, '2026-03-01 01:00 UTC');
SELECT walk('started', 10, NULL, '2026-03-01 03:00 UTC', '2026-03-01 01:00 UTC');

-- Names that need quotes, also that of a column which is called like the row in the statement; a domain, an enum.
CREATE TYPE "State" AS ENUM ('open', 'closed', 'archived');
CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE >= 0);
CREATE TABLE "Big ""orders""" ("t" int PRIMARY KEY, "Is, it" "State", "select" price, item text, k0 int DEFAULT 1);
INSERT INTO "Big ""orders""" SELECT i, (enum_range(NULL::"State"))[i % 4], i % 3 FROM generate_series(1, 9) AS i;
SELECT lanes.page_index(NULL::"Big ""orders""", '"Is, it" desc, "select"', '[["k0", "=", 1], ["t", ">", 0]]');
CREATE FUNCTION walk_big(order_by text) RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
    place text;
    ids   text;
    pages text;
BEGIN
    LOOP
        SELECT string_agg((p.item).t::text, ' ' ORDER BY p.at), (array_agg(p.cursor ORDER BY p.at DESC))[1] INTO ids, place
        FROM lanes.page(NULL::"Big ""orders""", order_by, 2, cursor => place) WITH ORDINALITY AS p (item, cursor, at);
        pages := concat_ws(' - ', pages, ids);
        IF place IS NULL THEN RETURN pages; END IF;
    END LOOP;
END
$$;
SELECT walk_big('"Is, it" desc, "select"');
SELECT string_agg(t::text, ' ' ORDER BY "Is, it" DESC, "select", t) FROM "Big ""orders""";

-- A key is needed: the primary key, or a unique index without nulls, compared as the index does.
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE folded (name text COLLATE ci NOT NULL, n int);
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::folded) $$) \gx
CREATE UNIQUE INDEX ON folded (name COLLATE "C") WHERE n > 0;
CREATE UNIQUE INDEX ON folded (n);
SELECT code FROM failure($$ SELECT * FROM lanes.page(NULL::folded) $$);
CREATE UNIQUE INDEX ON folded (name COLLATE "C");
INSERT INTO folded SELECT n FROM unnest('{b,a,B,A}'::text[]) AS n;
SELECT lanes.page_index(NULL::folded, 'name');
SELECT (item).name, cursor AS place FROM lanes.page(NULL::folded, 'name', 1) \gset
SELECT array_agg((item).name) FROM lanes.page(NULL::folded, 'name', 9, cursor => :'place');
SELECT array_agg((item).name) FROM lanes.page(NULL::folded, 'name collate "en-x-icu"', 9);

-- A partitioned table is one: its partitions are no shards to name.
CREATE TABLE events (id int, at date, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE events_a PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE events_b PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO events SELECT i, '2026-01-30'::date + i % 4 FROM generate_series(1, 8) AS i;
SELECT lanes.page_index(NULL::events, 'at desc, id');
SELECT string_agg((item).id::text, ' ') FROM lanes.page(NULL::events, 'at desc, id', 9);
SELECT string_agg((item).id::text, ' ') FROM lanes.page(NULL::events, 'at desc, id', 9, time_from => '2026-01-31', time_to => '2026-02-02');
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::parent) $$) \gx
SELECT count(*) FROM lanes.page(NULL::runs, 'name', 3, shard_column => 'shard_id');

-- What is refused.
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::int) $$) \gx
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL) $$);
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'started', 0) $$) \gx
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'started', NULL) $$);
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'started', 10001) $$);
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'lower(name)') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, repeat('id,', 32) || 'id') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'begun') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'doc') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'name collate nowhere') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'id collate "C"') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, shard_column => 'bucket') $$) \gx
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL::runs, shard_column => 'doc') $$);
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, filter => '{"name": "n1"}') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, filter => '[["name", "~", "n1"]]') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, filter => '[["name", "=", null]]') $$) \gx
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL::runs, filter => '[["begun", "=", 1]]') $$);
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL::runs, filter => '[["doc", "=", "{}"]]') $$);
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, filter => '[["id", "=", "one"]]') $$) \gx
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'name', time_from => now()) $$) \gx
-- A cursor is of one query, and of this database.
SELECT cursor AS place FROM lanes.page(NULL::runs, 'started', 3, '[["id", ">", 0]]') LIMIT 1 \gset
SELECT e.* FROM failure(format('SELECT * FROM lanes.page(NULL::runs, ''started'', cursor => %L)', :'place')) AS e \gx
SELECT e.code, e.message FROM failure(format('SELECT * FROM lanes.page(NULL::runs, ''started desc'', 3, ''[["id", ">", 0]]'', %L)', :'place')) AS e;
SELECT e.code, e.message FROM failure(format('SELECT * FROM lanes.page(NULL::runs, ''started'', 3, ''[["id", ">", 0]]'', %L, ''2026-01-01'')', :'place')) AS e;
SELECT e.code, e.message FROM failure(format('SELECT * FROM lanes.page(NULL::events, ''at'', cursor => %L)', :'place')) AS e;
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'started', cursor => 'no cursor') $$) \gx
SELECT e.code, e.message FROM failure(format('SELECT * FROM lanes.page(NULL::runs, ''started'', 3, ''[["id", ">", 0]]'', %L)', overlay(:'place' PLACING 'x' FROM 30))) AS e;
SELECT code, message FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'started', cursor => '') $$);
-- Its owner may change the key: cursors end, pages go on.
BEGIN;
UPDATE lanes.secret SET key = sha256('another');
SELECT e.* FROM failure(format('SELECT * FROM lanes.page(NULL::runs, ''started'', 3, ''[["id", ">", 0]]'', %L)', :'place')) AS e \gx
SELECT count(cursor) FROM lanes.page(NULL::runs, 'started', 3);
DELETE FROM lanes.secret;
SELECT e.* FROM failure($$ SELECT * FROM lanes.page(NULL::runs, 'started', 3) $$) AS e \gx
ROLLBACK;
SELECT octet_length(key), only_row FROM lanes.secret;
SELECT code FROM failure($$ INSERT INTO lanes.secret (only_row, key) VALUES (false, sha256('x')) $$);
SELECT code FROM failure($$ UPDATE lanes.secret SET key = 'short' $$);

-- The caller's rights and no more: of the table, its columns and its rows. Nobody but the owner sees the key, and asking
-- for a page leaves the caller who it was.
CREATE ROLE golden_reader;
GRANT USAGE ON SCHEMA shop TO golden_reader;
SET ROLE golden_reader;
SELECT * FROM failure($$ SELECT * FROM lanes.page(NULL::shop.runs, 'started', 3) $$) \gx
RESET ROLE;
GRANT SELECT ON runs TO golden_reader;
ALTER TABLE runs ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON runs USING (name = 'n1');
SET ROLE golden_reader;
SELECT walk('started', 2);
SELECT code, message FROM failure($$ SELECT key FROM lanes.secret $$);
SELECT current_user;
SELECT code, message FROM failure(format('SELECT (item).id FROM lanes.page(NULL::shop.runs, ''id'', 2, cursor => %L)', :'third'));
SELECT array_agg((item).id) FROM lanes.page(NULL::shop.runs, 'id', 2, cursor => :'third');
RESET ROLE;
DROP OWNED BY golden_reader;
DROP ROLE golden_reader;
SELECT * FROM lanes.page_columns('runs') ORDER BY column_name COLLATE "C";
SELECT * FROM failure($$ SELECT lanes.page_index(NULL::runs, 'begun') $$) \gx
SELECT lanes.drop_shard_column('runs');
DROP SCHEMA shop CASCADE;
