-- A shard column for a table that is in use. The CALL runs outside a transaction block, as psql sends it.
CREATE SCHEMA shop;
SET search_path = shop, public;
SET client_min_messages = notice;
\set SHOW_CONTEXT never
CREATE TABLE runs (id int PRIMARY KEY, started int, name text);
INSERT INTO runs SELECT i, i % 11, 'n' || i FROM generate_series(1, 23) AS i;
SELECT pg_relation_filenode('runs') AS file \gset
SELECT lanes.add_shard_column('runs', 'id', 4);
SELECT lanes.add_shard_column('runs', 'id', 4);
INSERT INTO runs VALUES (24), (25);
-- 23 rows are older than the trigger. A column that is written to another value, or to none, keeps its own.
SELECT count(*), count(shard_id) FROM runs;
INSERT INTO runs (id, shard_id) VALUES (26, 99), (27, NULL);
UPDATE runs SET shard_id = 77 WHERE id = 24;
UPDATE runs SET id = 28, shard_id = NULL WHERE id = 25;
SELECT id, shard_id = shard(id, 4) AS right FROM runs WHERE id > 23 ORDER BY id;
SELECT source, shard_column, key, shards, state, blocks, blocks_done, rows_filled, trigger_name FROM lanes.shard_columns;
BEGIN;
CALL lanes.backfill_shard_column('runs');
ROLLBACK;
CALL lanes.backfill_shard_column('runs', 10);
SELECT source, shard_column, key, shards, state, blocks, blocks_done, rows_filled FROM lanes.shard_columns;
-- Ten, five, three and five of the first 23 rows are in the shards 0 to 3.
SELECT shard_id, count(*) FROM runs WHERE id <= 23 GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM runs WHERE shard_id IS DISTINCT FROM shard(id, 4);
SELECT pg_relation_filenode('runs') = :file AS not_rewritten;
SELECT attnotnull FROM pg_attribute WHERE attrelid = 'runs'::regclass AND attname = 'shard_id';
SELECT conname, convalidated, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'runs'::regclass AND contype = 'c';
SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'runs'::regclass;
SELECT col_description('runs'::regclass, attnum) FROM pg_attribute WHERE attrelid = 'runs'::regclass AND attname = 'shard_id';
-- It is there for what a replica applies, too.
SET session_replication_role = replica;
INSERT INTO runs VALUES (30);
UPDATE runs SET id = 31 WHERE id = 30;
RESET session_replication_role;
SELECT shard_id = shard(31, 4) AS right FROM runs WHERE id = 31;
-- Called again, there is nothing left to do.
CALL lanes.backfill_shard_column('runs');
SELECT count(*), max(shard) FROM lanes.skew('runs');
-- Another n is another column, beside the first or after it.
SELECT * FROM failure($$ SELECT lanes.add_shard_column('runs', 'id', 8) $$) \gx
SELECT lanes.add_shard_column('runs', 'name', 8, 'Shard "8"');
UPDATE runs SET name = 'x' WHERE name IS NULL;
ALTER TABLE runs ALTER name SET NOT NULL;
SELECT lanes.add_shard_column('runs', 'name', 8, 'Shard "8"');
CALL lanes.backfill_shard_column('runs', shard_column => 'Shard "8"');
SELECT shard_column, key, shards, state FROM lanes.shard_columns ORDER BY 1;
SELECT count(*) FROM runs WHERE "Shard ""8""" = shard(name, 8) AND shard_id = shard(id, 4);
CREATE INDEX ON runs (shard_id, started);
SELECT lanes.drop_shard_column('runs');
SELECT lanes.drop_shard_column('runs', 'Shard "8"');
SELECT attname FROM pg_attribute WHERE attrelid = 'runs'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
SELECT (SELECT count(*) FROM lanes.shard_columns) AS columns, (SELECT count(*) FROM lanes.shard_backfill) AS backfills,
    (SELECT count(*) FROM pg_trigger WHERE tgrelid = 'runs'::regclass) AS triggers, (SELECT count(*) FROM pg_constraint WHERE conrelid = 'runs'::regclass AND contype = 'c') AS checks;
-- Every type of key, a domain, and an empty table.
CREATE DOMAIN code AS varchar(20);
CREATE TABLE keys (t text NOT NULL, v varchar(9) NOT NULL, d code NOT NULL, u uuid NOT NULL, l bigint NOT NULL, s smallint NOT NULL, b bytea NOT NULL);
DO $$ DECLARE k text; BEGIN FOREACH k IN ARRAY '{t,v,d,u,l,s,b}'::text[] LOOP PERFORM lanes.add_shard_column('keys', k, 16, 'of_' || k); END LOOP; END $$;
CALL lanes.backfill_shard_column('keys', shard_column => 'of_d');
INSERT INTO keys SELECT 'ü' || g, g, 'Größe' || g, gen_random_uuid(), g * 10000000000, -g, decode(to_hex(g + 4096), 'hex') FROM generate_series(1, 200) AS g;
-- A key that is stored out of line and compressed.
INSERT INTO keys SELECT repeat('Größe', 100000), 'v', 'd', gen_random_uuid(), 1, 1, '\x00';
SELECT count(*) FROM keys WHERE of_t = shard(t, 16) AND of_v = shard(v, 16) AND of_d = shard(d::text, 16) AND of_u = shard(u, 16) AND of_l = shard(l, 16) AND of_s = shard(s, 16) AND of_b = shard(b, 16);
-- VACUUM FULL in the middle of a backfill moves the rows; none is missed.
CREATE TABLE bulk (id int NOT NULL, filler text);
INSERT INTO bulk SELECT g, repeat('x', 300) FROM generate_series(1, 1000) AS g;
SELECT lanes.add_shard_column('bulk', 'id', 4);
DELETE FROM bulk WHERE id <= 200;
SELECT lanes.fill_shard_batch('bulk', 'shard_id', 300);
SELECT lanes.fill_shard_batch('bulk', 'shard_id', 300);
VACUUM FULL bulk;
SET client_min_messages = warning;
CALL lanes.backfill_shard_column('bulk', 300);
SELECT count(*), count(*) FILTER (WHERE shard_id = shard(id, 4)) FROM bulk;
-- A column that is renamed under the trigger: an error that says what to do, not a wrong shard.
ALTER TABLE bulk RENAME id TO number;
SELECT * FROM failure($$ INSERT INTO bulk VALUES (1) $$) \gx

CREATE TABLE plain (id int, key char(3) NOT NULL, shard_id int);
CREATE TABLE parent (id int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE child PARTITION OF parent FOR VALUES FROM (0) TO (10);
CREATE VIEW seen AS SELECT * FROM runs;
SELECT * FROM failure($$ SELECT lanes.add_shard_column('runs', 'id', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('runs', NULL, 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('runs', 'ident', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('plain', 'id', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('plain', 'key', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('bulk', 'number', 4, 'filler') $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('bulk', 'number', 4, repeat('x', 51)::name) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('parent', 'id', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('child', 'id', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.add_shard_column('seen', 'id', 4) $$) \gx
SELECT * FROM failure($$ SELECT lanes.drop_shard_column('runs') $$) \gx
SELECT * FROM failure($$ SELECT lanes.drop_shard_column('bulk', 'shard_id', NULL) $$) \gx
CALL lanes.backfill_shard_column('runs');
CALL lanes.backfill_shard_column('bulk', 0);
-- A view on the column keeps it.
CREATE VIEW sharded AS SELECT shard_id FROM bulk;
SELECT code FROM failure($$ SELECT lanes.drop_shard_column('bulk') $$);
SELECT state FROM lanes.shard_columns WHERE source = 'bulk'::regclass;
-- The trigger function is for its trigger only.
CREATE TRIGGER wrong AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('id', 'started', '4');
SELECT * FROM failure($$ INSERT INTO runs VALUES (100, 1, 'n') $$) \gx
DROP TRIGGER wrong ON runs;
CREATE TRIGGER wrong BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('id', 'name', '4');
SELECT * FROM failure($$ INSERT INTO runs VALUES (100, 1, 'n') $$) \gx
DROP TRIGGER wrong ON runs;
CREATE TRIGGER wrong BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('id', 'started');
SELECT * FROM failure($$ INSERT INTO runs VALUES (100, 1, 'n') $$) \gx
-- The owner of a table needs the grants that docs/SQL_TOOLS.md names, and no more.
CREATE ROLE golden_owner;
GRANT USAGE, CREATE ON SCHEMA shop TO golden_owner;
GRANT SELECT, INSERT, UPDATE, DELETE ON lanes.shard_backfill TO golden_owner;
SET ROLE golden_owner;
CREATE TABLE own (id int NOT NULL);
INSERT INTO own SELECT generate_series(1, 10);
SELECT code, message FROM failure($$ SELECT lanes.add_shard_column('own', 'id', 4) $$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION lanes.add_shard_column, lanes.drop_shard_column, lanes.run_with_lock_timeout,
    lanes.fill_shard_batch, lanes.check_shard_column TO golden_owner;
GRANT EXECUTE ON PROCEDURE lanes.backfill_shard_column TO golden_owner;
SET ROLE golden_owner;
SELECT lanes.add_shard_column('own', 'id', 4);
CALL lanes.backfill_shard_column('own');
SELECT lanes.drop_shard_column('own');
SELECT * FROM failure($$ SELECT lanes.add_shard_column('shop.runs', 'id', 4) $$) \gx
-- Anybody can make a trigger like that of a shard column on a table of his own; the list is still read, and names what is one.
CREATE TEMP TABLE decoy (a int NOT NULL, b int);
CREATE TRIGGER word BEFORE INSERT ON decoy FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('a', 'word', 'x');
CREATE TRIGGER none BEFORE INSERT ON decoy FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('a', 'none', '');
CREATE TRIGGER zero BEFORE INSERT ON decoy FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('a', 'zero', '0');
CREATE TRIGGER large BEFORE INSERT ON decoy FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('a', 'large', '2147483648');
CREATE TRIGGER longer BEFORE INSERT ON decoy FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('a', 'longer', '99999999999999999999');
CREATE TRIGGER greatest BEFORE INSERT ON decoy FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id('a', 'greatest', '2147483647');
SELECT shard_column, key, shards FROM lanes.shard_columns WHERE source = 'decoy'::regclass;
SELECT count(shards) > 0 AS readable FROM lanes.shard_columns;
DROP TABLE decoy;
RESET ROLE;
DROP OWNED BY golden_owner;
DROP ROLE golden_owner;
DROP SCHEMA shop CASCADE;
