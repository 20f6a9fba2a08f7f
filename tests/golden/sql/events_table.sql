-- A table of events as a log: which tables can be one, ticks, batches, waiting, rebase. In one session; what needs several
-- is in tests/isolation.
CREATE SCHEMA events;
SET search_path = events, public;

-- Which tables can be a log.
CREATE VIEW a_view AS SELECT 1 AS position;
CREATE TEMP TABLE a_temporary (position bigint PRIMARY KEY);
CREATE UNLOGGED TABLE an_unlogged (position bigint PRIMARY KEY);
SELECT * FROM failure($$ SELECT lanes.register_log(NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.register_log('a_view') $$) \gx
SELECT * FROM failure($$ SELECT lanes.register_log('a_temporary') $$) \gx
SELECT * FROM failure($$ SELECT lanes.register_log('an_unlogged') $$) \gx
CREATE TABLE incomplete (position bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL, type text NOT NULL, ts date NOT NULL, payload bytea NOT NULL);
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete', key_column => 'order_id') $$) \gx
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER TABLE incomplete ALTER ts TYPE timestamptz USING ts;
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER TABLE incomplete ALTER payload TYPE text USING '{}';
-- An event without a key.
ALTER TABLE incomplete ALTER key DROP NOT NULL;
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER TABLE events.incomplete ALTER COLUMN key SET NOT NULL;
-- Not unique, unique in part, unique together with something else.
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
CREATE UNIQUE INDEX in_part ON incomplete (position) WHERE key <> '';
CREATE UNIQUE INDEX together ON incomplete (position, key);
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER TABLE incomplete ADD UNIQUE (position);
-- Positions from ranges of each session.
ALTER SEQUENCE incomplete_position_seq CACHE 10;
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER SEQUENCE incomplete_position_seq CACHE 1;
-- A column of that name that is something else: of another type, without its default, or null.
ALTER TABLE incomplete ADD xid bigint;
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER TABLE incomplete DROP xid, ADD xid xid8 NOT NULL;
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
ALTER TABLE incomplete DROP xid, ADD xid xid8 DEFAULT pg_current_xact_id();
SELECT * FROM failure($$ SELECT lanes.register_log('incomplete') $$) \gx
SELECT count(*) FROM lanes.events_table;

-- A large table is not kept from its appenders while an index is made.
CREATE TABLE large (position bigint PRIMARY KEY, key text NOT NULL, type text NOT NULL, ts bigint NOT NULL, payload text NOT NULL);
ALTER TABLE large ALTER payload SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, 'k', 'T', 0, repeat('x', 8000) FROM generate_series(1, 9000) AS i;
SELECT * FROM failure($$ SELECT lanes.register_log('large') $$) \gx
-- What the hint says does it. Rows that are there are not written anew.
SELECT relfilenode AS before FROM pg_class WHERE oid = 'large'::regclass \gset
ALTER TABLE events.large ADD COLUMN IF NOT EXISTS xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX CONCURRENTLY ON events.large (xid, position);
SELECT lanes.register_log('large') IS NOT NULL AS registered;
SELECT relfilenode = :before AS untouched, (SELECT count(DISTINCT xid) FROM large) AS xids FROM pg_class WHERE oid = 'large'::regclass;
DELETE FROM lanes.log USING lanes.events_table AS e WHERE log.log_id = e.log_id;
DROP TABLE large, incomplete;

-- A lane is split by its events, where whoever does it may read them: half of them are of one key. Without that right the
-- slots are counted.
CREATE TABLE parting (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL DEFAULT 'T', key text NOT NULL,
    ts bigint NOT NULL DEFAULT 0, payload text NOT NULL DEFAULT '{}');
INSERT INTO parting (key) SELECT CASE WHEN i % 2 = 0 THEN 'hot' ELSE 'k' || i END FROM generate_series(1, 400) AS i;
SELECT lanes.register_log('parting') AS parting_log \gset
SELECT * FROM lanes.define('{"projections": {"parted": {"source_events": ["T"], "lanes": 1,
    "target": {"table": "parted", "primary_key": ["id"]}, "fields": {"id": "TEXT", "n": "BIGINT"}, "derive": {"id": "event.key"},
    "aggregates": {"T": {"n": {"op": "count"}}}}}}', :'parting_log');
CREATE ROLE blind;
GRANT USAGE ON SCHEMA lanes TO blind;
GRANT ALL ON ALL TABLES IN SCHEMA lanes TO blind;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lanes TO blind;
BEGIN;
SET ROLE blind;
SELECT lanes.split('parted', 0);
RESET ROLE;
SELECT lanes.lane_for('parted', key) = lanes.lane_for('parted', 'hot') AS with_the_hot_key, count(*) BETWEEN 190 AND 210 AS half, count(*) > 270 AS much
FROM parting GROUP BY 1 ORDER BY 1;
ROLLBACK;
SELECT lanes.split('parted', 0);
SELECT lanes.lane_for('parted', key) = lanes.lane_for('parted', 'hot') AS with_the_hot_key, count(*) BETWEEN 190 AND 210 AS half, count(*) > 270 AS much
FROM parting GROUP BY 1 ORDER BY 1;
DELETE FROM lanes.projection WHERE name = 'parted';
DELETE FROM lanes.log WHERE log_id = :'parting_log';
DROP TABLE parting;
DROP OWNED BY blind;
DROP ROLE blind;

-- Other names and types of columns; names that need quotes; the time in milliseconds.
CREATE TABLE "Order Events" ("No" int GENERATED ALWAYS AS IDENTITY UNIQUE, "order" uuid NOT NULL, kind varchar(20) NOT NULL,
    at bigint NOT NULL, body json NOT NULL);
INSERT INTO "Order Events" ("order", kind, at, body) VALUES ('00000000-0000-0000-0000-000000000001', 'PLACED', 1500, '{"cents": 3}');
SELECT lanes.register_log('"Order Events"', 'order', 'kind', 'at', 'body', 'No', 'Appended By') AS orders_log \gset
SELECT events_table, position_column, key_column, type_column, time_column, payload_column, xid_column, time_is_timestamp
FROM lanes.events_table \gx
\d "Order Events"
-- Again: the same log.
SELECT lanes.register_log('"Order Events"') = :'orders_log' AS same;
SELECT lanes.define('{"projections": {"placed": {"source_events": ["PLACED"], "lanes": 1,
    "target": {"table": "placed", "primary_key": ["id"]}, "fields": {"id": "UUID", "n": "BIGINT"}, "derive": {"id": "event.key"},
    "aggregates": {"PLACED": {"n": {"op": "count"}}}}}}', :'orders_log');
SELECT lanes.tick('"Order Events"');
BEGIN;
SELECT lane, epoch, tick, position, target_table FROM lanes.claim_batch('placed', 'w');
SELECT tick, position, event_type, event_key, lane_key, event_time AT TIME ZONE 'UTC' AS event_time, payload FROM lanes.read_batch('placed', 0);
SELECT lanes.commit_batch('placed', 0, 1);
COMMIT;
SELECT horizon, horizon_event_time AT TIME ZONE 'UTC' AS horizon_event_time FROM lanes.log WHERE log_id = :'orders_log';
DELETE FROM lanes.projection WHERE name = 'placed';
DELETE FROM lanes.log WHERE log_id = :'orders_log';

-- Ticks.
CREATE TABLE reading (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL, key text NOT NULL,
    ts timestamptz NOT NULL DEFAULT '2013-01-01 00:00:00Z', payload jsonb NOT NULL DEFAULT '{}');
SELECT * FROM failure($$ SELECT lanes.tick('reading') $$) \gx
SELECT * FROM failure($$ SELECT lanes.tick(NULL) $$) \gx
SELECT lanes.register_log('reading') AS log \gset
SELECT * FROM lanes.define('{"projections": {"readings": {"source_events": ["READ"], "lanes": 2,
    "target": {"table": "readings", "primary_key": ["id"]}, "fields": {"id": "TEXT", "n": "BIGINT"}, "derive": {"id": "event.key"},
    "aggregates": {"READ": {"n": {"op": "count"}}}}}}', :'log');
SELECT lanes.tick('reading') AS nothing_yet;
INSERT INTO reading (type, key) SELECT 'READ', 'k' || i % 5 FROM generate_series(1, 10) AS i;
SELECT lanes.tick('reading') AS first, lanes.tick('reading') AS nothing_new;
INSERT INTO reading (type, key, ts) VALUES ('OTHER', 'k0', '2013-01-01 00:01:00Z');
SELECT lanes.tick('reading') AS second;
SELECT tick, events, last_position FROM lanes.tick ORDER BY tick;
SELECT horizon, floor, horizon_event_time AT TIME ZONE 'UTC' AS event_time FROM lanes.log WHERE log_id = :'log';
SELECT p AS position, lanes.tick_of(:'log', p) AS tick FROM unnest('{1, 10, 11, 12, null}'::bigint[]) AS p;
SELECT * FROM failure($$ SELECT lanes.tick_of('00000000-0000-0000-0000-00000000000b', 1) $$) \gx
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM failure($$ SELECT lanes.tick('reading') $$) \gx
ROLLBACK;
SELECT events_table, state FROM lanes.events_in_flight;
BEGIN;
INSERT INTO reading (type, key) VALUES ('READ', 'rolled back');
SELECT log_id = :'log' AS log, events_table, process_id = pg_backend_pid() AS process, state, age >= '0' AS age, prepared FROM lanes.events_in_flight;
ROLLBACK;

-- Batches: k1 and k3 belong to lane 1. An event of another type is passed over.
SELECT k, lanes.lane_for('readings', k) AS lane FROM unnest('{k0,k1,k2,k3,k4}'::text[]) AS k;
SELECT * FROM failure($$ SELECT lanes.read_batch('readings', 0) $$) \gx
BEGIN;
SELECT lane, epoch, tick, position, target_table, map_version, stop_tick, stop_position FROM lanes.claim_batch('readings', 'w');
SELECT * FROM failure($$ SELECT lanes.read_batch('readings', 1) $$) \gx
SELECT * FROM failure($$ SELECT lanes.read_batch('readings', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.read_batch('readings', 0, 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.read_batch('readings', 0, NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.commit_batch('readings', 0, 1) $$) \gx
-- A second read goes on where the first ended, and one that is rolled back was none.
SELECT position, event_key FROM lanes.read_batch('readings', 0, 2);
SAVEPOINT s;
SELECT position, event_key FROM lanes.read_batch('readings', 0, 2);
ROLLBACK TO s;
SELECT position, event_key FROM lanes.read_batch('readings', 0, 1);
SELECT lanes.commit_batch('readings', 0, 1);
-- The lane was given back with its last statement.
SELECT * FROM failure($$ SELECT lanes.begin_batch('readings', 0, 1, (SELECT log_id FROM lanes.projection WHERE name = 'readings')) $$) \gx
COMMIT;
SELECT lane, epoch, tick, position, events, owner, event_time AT TIME ZONE 'UTC' AS event_time FROM lanes.checkpoint WHERE projection = 'readings' ORDER BY lane;
SELECT lane, state, reason, lag, lag_seconds FROM lanes.status WHERE projection = 'readings';
-- The lane longest without a sign of life comes first. At the end of the last tick there is nothing to do.
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('readings', 'w');
SELECT tick, position, event_key FROM lanes.read_batch('readings', 1);
SELECT tick, position, event_key FROM lanes.read_batch('readings', 1);
SELECT lanes.commit_batch('readings', 1, 1);
COMMIT;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('readings', 'w');
SELECT tick, position, event_key FROM lanes.read_batch('readings', 0);
SELECT lanes.commit_batch('readings', 0, 2);
COMMIT;
SELECT * FROM lanes.claim_batch('readings', 'w');
SELECT lane, tick, position, events FROM lanes.checkpoint WHERE projection = 'readings' ORDER BY lane;
SELECT lane, lag, lag_seconds FROM lanes.status WHERE projection = 'readings';
-- Who may not.
SELECT * FROM failure($$ SELECT lanes.claim_batch('readings', '') $$) \gx
SELECT code, detail, hint FROM failure($$ SELECT lanes.claim_batch('readings', 'w', '00000000-0000-0000-0000-00000000000b') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim_batch('nobody', 'w') $$) \gx
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM failure($$ SELECT lanes.claim_batch('readings', 'w') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim('readings', 'w') $$) \gx
SELECT * FROM failure($$ SELECT lanes.wait_for('readings', 'k0', 1) $$) \gx
ROLLBACK;
-- A log of ingestd is read by its daemon.
BEGIN;
INSERT INTO lanes.log (log_id) VALUES ('00000000-0000-0000-0000-00000000000a');
SELECT lanes.define(document('orders'), '00000000-0000-0000-0000-00000000000a');
SELECT * FROM failure($$ SELECT lanes.claim_batch('orders', 'w') $$) \gx
SELECT lane, epoch FROM lanes.claim_batch('orders', 'w', '00000000-0000-0000-0000-00000000000a');
SELECT * FROM failure($$ SELECT lanes.read_batch('orders', 0) $$) \gx
ROLLBACK;
-- A session that came with no application_name may be a pooler's.
\setenv PGAPPNAME ''
\set nameless 'dbname=' :DBNAME ' fallback_application_name='
\set named 'dbname=' :DBNAME ' application_name=golden'
\c :nameless
SELECT * FROM public.failure($$ SELECT lanes.claim('readings', 'w') $$) \gx
SET application_name = 'a pooler''s';
SELECT * FROM public.failure($$ SELECT lanes.claim('readings', 'w') $$) \gx
BEGIN;
SELECT count(*) FROM lanes.claim_batch('readings', 'w');
ROLLBACK;
\c :named
SET search_path = events, public;

-- Waiting for one's own event: applied, not yet in a tick, not there, not yet applied.
SELECT log_id AS log FROM lanes.events_table \gset
SELECT lanes.wait_for('readings', 'k0', 10, '0') AS applied, lanes.wait_for('readings', 'k2', 99, '0') AS not_there;
INSERT INTO reading (type, key) VALUES ('READ', 'k2'), ('READ', 'k0') RETURNING position;
SELECT lanes.wait_for('readings', 'k2', 13, '0') AS in_no_tick;
SELECT lanes.tick('reading');
SELECT lanes.wait_for('readings', 'k2', 13, '10 ms') AS not_applied;
-- When one lane has it, its keys are waited for and no other's.
INSERT INTO reading (type, key) VALUES ('READ', 'k1') RETURNING position;
SELECT lanes.tick('reading');
BEGIN;
SELECT lane FROM lanes.claim('readings', 'w') AS c \gset
SELECT lane, epoch FROM lanes.claim_batch('readings', 'w') \gset other_
SELECT position, event_key FROM lanes.read_batch('readings', :other_lane);
SELECT lanes.commit_batch('readings', :other_lane, :other_epoch);
SELECT k, :other_lane = lanes.lane_for('readings', k) AS in_that_lane, lanes.wait_for('readings', k, p, '0') AS applied
FROM (VALUES ('k2', 13), ('k0', 14), ('k1', 15)) AS v (k, p);
ROLLBACK;
SELECT * FROM failure($$ SELECT lanes.wait_for('readings', NULL, 1) $$) \gx
SELECT * FROM failure($$ SELECT lanes.wait_for('readings', 'k0', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.wait_for('readings', 'k0', 1, NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.wait_for('nobody', 'k0', 1) $$) \gx
-- A parked key is passed by its lane and not applied; its later events are put behind it.
INSERT INTO reading (type, key) VALUES ('READ', 'k3'), ('READ', 'k2') RETURNING position;
SELECT lanes.tick('reading');
DO $$
DECLARE
    batch record;
BEGIN
    LOOP
        SELECT * INTO batch FROM lanes.claim_batch('readings', 'w');
        EXIT WHEN NOT FOUND;
        IF batch.lane = lanes.lane_for('readings', 'k2') AND batch.tick < 3 THEN
            PERFORM lanes.park('readings', batch.lane, batch.epoch, ARRAY[lane_of('k2', 1024)], '{k2}', '{13}', '{READ}', '{k2}', '{0}',
                '{"{}"}', '{23514}', '{it does not fit}', NULL, '{3}');
            PERFORM lanes.commit_batch('readings', batch.lane, batch.epoch, 13, 0, 3);
        ELSE
            PERFORM lanes.read_batch('readings', batch.lane);
            PERFORM lanes.commit_batch('readings', batch.lane, batch.epoch);
        END IF;
    END LOOP;
END $$;
SELECT tick, position, event_key FROM lanes.parked_event WHERE projection = 'readings' ORDER BY tick, position;
SELECT lanes.wait_for('readings', 'k2', 13, '0') AS parked, lanes.wait_for('readings', 'k2', 17, '0') AS behind_it,
    lanes.wait_for('readings', 'k2', 7, '0') AS before_it, lanes.wait_for('readings', 'k0', 14, '0') AS another;
SELECT lane, lag, parked_keys, parked_events FROM lanes.status WHERE projection = 'readings';

-- Rebase, and what is refused until then.
SELECT * FROM failure($$ SELECT lanes.rebase('reading') $$) \gx
SELECT * FROM failure($$ SELECT lanes.rebase('pg_class') $$) \gx
UPDATE lanes.events_table SET system_identifier = system_identifier + 1;
SELECT * FROM failure($$ SELECT lanes.tick('reading') $$) \gx
BEGIN;
UPDATE lanes.checkpoint SET tick = 1, position = 0 WHERE projection = 'readings';
SELECT lane FROM lanes.claim_batch('readings', 'w') \gset
SELECT * FROM failure(format($$ SELECT lanes.read_batch('readings', %s) $$, :'lane')) \gx
ROLLBACK;
-- Rows that were appended here cannot be told from restored ones.
SELECT * FROM failure($$ SELECT lanes.rebase('reading') $$) \gx
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM failure($$ SELECT lanes.rebase('reading') $$) \gx
ROLLBACK;
SELECT tick, position FROM lanes.checkpoint WHERE projection = 'readings' ORDER BY lane;
SELECT lanes.rebase('reading', 17) = :'log' AS same_log;
SELECT tick, position FROM lanes.parked_event ORDER BY tick, position;
SELECT lane, tick, position, owner FROM lanes.checkpoint WHERE projection = 'readings' ORDER BY lane;
SELECT tick, events, last_position FROM lanes.tick ORDER BY tick;
SELECT count(*) AS logs FROM lanes.log WHERE log_id = :'log';
SELECT * FROM lanes.claim_batch('readings', 'w');
SELECT lanes.tick('reading') AS newest;

DELETE FROM lanes.projection WHERE name = 'readings';
-- Nobody reads: ticks do not pile up.
INSERT INTO reading (type, key) VALUES ('READ', 'k0');
SELECT lanes.tick('reading');
INSERT INTO reading (type, key) VALUES ('READ', 'k0');
SELECT lanes.tick('reading');
SELECT tick, events, last_position FROM lanes.tick ORDER BY tick;
-- Columns that are set, in rows of lanes: what orders their values would need the tick too. What commutes is taken.
SELECT f.* FROM lanes.events_table AS e, failure(format('SELECT lanes.define(%L, %L)', document('latest', '{"target": {"table": "latest", "primary_key": ["kind", "lane"]},
    "fields": {"kind": "TEXT", "lane": "INT", "state": "TEXT"}, "derive": {"kind": "event.type", "lane": "lane()", "state": "event.state"}, "aggregates": {}}'),
    e.log_id)) AS f LIMIT 1 \gx
BEGIN;
SELECT d.* FROM lanes.events_table AS e, lanes.define(document('latest', '{"target": {"table": "latest", "primary_key": ["kind", "lane"]},
    "fields": {"kind": "TEXT", "lane": "INT", "n": "BIGINT"}, "derive": {"kind": "event.type", "lane": "lane()"},
    "aggregates": {"ORDER_PLACED": {"n": {"op": "count"}}}}'), e.log_id) AS d;
ROLLBACK;
DELETE FROM lanes.log USING lanes.events_table AS e WHERE log.log_id = e.log_id;
DROP SCHEMA events CASCADE;
