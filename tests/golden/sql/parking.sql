-- Parked keys and skipped events, by a worker in SQL on an events table with one lane.
CREATE SCHEMA parking;
SET search_path = parking, public;
CREATE TABLE ev (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL DEFAULT 'T', key text NOT NULL,
    ts timestamptz NOT NULL DEFAULT '2026-01-01 00:00+00', payload jsonb NOT NULL DEFAULT '{}');
SELECT lanes.register_log('ev') IS NOT NULL AS registered;
CREATE PROCEDURE define(log text) LANGUAGE sql AS $$
    SELECT lanes.define('{"projections": {"parked": {"source_events": ["T"], "lanes": 1, "target": {"table": "parking.t", "primary_key": ["k"]},
        "fields": {"k": "TEXT", "n": "BIGINT"}, "derive": {"k": "event.key"}, "aggregates": {"T": {"n": {"op": "count"}}}}}}',
        (SELECT e.log_id FROM lanes.events_table AS e WHERE e.events_table = 'parking.' || log))
$$;
CALL define('ev');
CREATE FUNCTION append(keys text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ev (key) SELECT k FROM string_to_table(append.keys, ' ') AS k;
    RETURN (SELECT count(*) FROM ev);
END $$;
-- Parks a key with its event.
CREATE FUNCTION park(lane int, epoch bigint, key text, "position" bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT lanes.park('parked', lane, epoch, ARRAY[lane_of(key, 1024)], ARRAY[key], ARRAY["position"], '{T}', ARRAY[key], '{0}', '{"{}"}',
        '{23514}', '{refused}', NULL, ARRAY[lanes.tick_of((SELECT log_id FROM lanes.projection WHERE name = 'parked'), "position")])
$$;
CREATE VIEW waiting AS SELECT k.key, array_agg(e.position ORDER BY e.position) AS positions
    FROM lanes.parked_key AS k JOIN lanes.parked_event AS e USING (projection, version, slot, key_hash) WHERE k.projection = 'parked' GROUP BY 1;

-- A batch that accounts for less than it has read: what was put behind a parked key beyond that place comes again.
SELECT append('a b c a d');
SELECT lanes.tick('ev') AS tick;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT park(:lane, :epoch, 'a', 1);
SELECT lanes.commit_batch('parked', :lane, :epoch, 1, 0, 1);
COMMIT;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position, event_key FROM lanes.read_batch('parked', 0);
SELECT * FROM waiting;
SELECT lanes.commit_batch('parked', :lane, :epoch, 2, 0, 1);
COMMIT;
SELECT * FROM waiting;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position, event_key FROM lanes.read_batch('parked', 0);
SELECT lanes.commit_batch('parked', :lane, :epoch);
COMMIT;
SELECT * FROM waiting;

-- A batch that ends without commit_batch has done nothing, and its session may take the lane again.
SELECT append('e');
SELECT lanes.tick('ev') AS tick;
SELECT lane FROM lanes.claim_batch('parked', 'golden');
SELECT lane FROM lanes.claim_batch('parked', 'golden');

-- A retry that is asked for while one runs is not forgotten when that one fails.
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position FROM lanes.parked_events('parked', lane_of('a', 1024), 'a', 10);
SELECT lanes.retry('parked', 'a');
SELECT lanes.unpark('parked', :lane, :epoch, lane_of('a', 1024), 'a', 0, '23514', 'refused again', NULL);
SELECT lanes.commit_batch('parked', :lane, :epoch, 5, 0, 1);
COMMIT;
SELECT attempts, next_try_at IS NOT NULL AS is_due, error FROM lanes.parked_key WHERE key = 'a';
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT lanes.unpark('parked', :lane, :epoch, lane_of('a', 1024), 'a', 0, '23514', 'refused at last', NULL);
SELECT lanes.commit_batch('parked', :lane, :epoch, 5, 0, 1);
COMMIT;
SELECT attempts, next_try_at IS NOT NULL AS is_due, error FROM lanes.parked_key WHERE key = 'a';

-- What waits since before lanes.rebase has ticks below 0: a failed try takes none of it out.
UPDATE lanes.parked_event SET tick = tick - 10 WHERE projection = 'parked';
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT lanes.unpark('parked', :lane, :epoch, lane_of('a', 1024), 'a', 0, '23514', 'refused still', NULL);
SELECT lanes.commit_batch('parked', :lane, :epoch, 5, 0, 1);
COMMIT;
SELECT * FROM waiting;

-- The lane stops at an event. Once that is skipped a worker does not see it any more, and the audit knows it; also in a batch
-- that accounts for what is before it only.
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT lanes.stop_at_event('parked', :lane, :epoch, 6, 'refused');
COMMIT;
SELECT lanes.skip('parked', 6, 'golden');
SELECT append('f g');
SELECT lanes.tick('ev') AS tick;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position, event_key FROM lanes.read_batch('parked', 0);
SELECT position, event_key, reason FROM lanes.skipped_event WHERE projection = 'parked';
SELECT lanes.commit_batch('parked', :lane, :epoch, 5, 0, 1);
COMMIT;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position, event_key FROM lanes.read_batch('parked', 0);
SELECT lanes.commit_batch('parked', :lane, :epoch);
COMMIT;
SELECT position, event_key, reason FROM lanes.skipped_event WHERE projection = 'parked';

-- After a change of the map the event at which a lane stands may be another's: nobody can have it skipped by its old owner.
SELECT append('h');
SELECT lanes.tick('ev') AS tick;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT lanes.stop_at_event('parked', :lane, :epoch, 9, 'refused');
COMMIT;
SELECT lane, failed_position FROM lanes.checkpoint WHERE projection = 'parked';
SELECT lanes.split('parked', 0);
SELECT lane, failed_position FROM lanes.checkpoint WHERE projection = 'parked' ORDER BY lane;
SELECT * FROM failure($$ SELECT lanes.skip('parked', 9, 'golden') $$) \gx

-- Nothing that waits outlives its projection.
DELETE FROM lanes.projection WHERE name = 'parked';
CALL define('ev');
SELECT lane, parked_keys, parked_events FROM lanes.status WHERE projection = 'parked';
SELECT count(*) FROM lanes.parked_event WHERE projection = 'parked';

DELETE FROM lanes.projection WHERE name = 'parked';
DELETE FROM lanes.log USING lanes.events_table AS e WHERE log.log_id = e.log_id AND e.events_table = 'parking.ev';

-- Times that no calendar has, and payloads that are no jsonb, stop nobody but their key.
CREATE TABLE odd (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL DEFAULT 'T', key text NOT NULL,
    ts timestamptz NOT NULL, payload json NOT NULL);
SELECT lanes.register_log('odd') IS NOT NULL AS registered;
CALL define('odd');
INSERT INTO odd (key, ts, payload) VALUES ('a', '2026-01-01 00:00+00', '{}'), ('b', 'infinity', '{}'), ('c', '-infinity', '{}'), ('d', '294276-12-31 00:00+00', '{}'),
    ('e', '2026-01-01 00:00+00', '{"x": "\u0000"}'), ('e', '2026-01-01 00:00+00', '{}'), ('f', '2026-01-01 00:00+00', '{"x": 1e400000}'), ('g', 'infinity', '{}');
SELECT lanes.tick('odd') AS tick;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position, event_key, event_time AT TIME ZONE 'UTC' AS event_time, payload FROM lanes.read_batch('parked', 0);
SELECT lanes.commit_batch('parked', :lane, :epoch);
COMMIT;
SELECT key, sqlstate FROM lanes.parked_key WHERE projection = 'parked' ORDER BY key;
SELECT * FROM waiting ORDER BY key;
DELETE FROM lanes.projection WHERE name = 'parked';
DELETE FROM lanes.log USING lanes.events_table AS e WHERE log.log_id = e.log_id AND e.events_table = 'parking.odd';
-- Times in nanoseconds where milliseconds are meant.
CREATE TABLE nanoseconds (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL DEFAULT 'T', key text NOT NULL,
    ts bigint NOT NULL, payload text NOT NULL);
SELECT lanes.register_log('nanoseconds') IS NOT NULL AS registered;
CALL define('nanoseconds');
INSERT INTO nanoseconds (key, ts, payload) VALUES ('a', 1767225600000, '{}'), ('b', 1767225600000000000, 'no JSON'), ('c', 1767225600000000000, '{}');
SELECT lanes.tick('nanoseconds') AS tick;
BEGIN;
SELECT lane, epoch FROM lanes.claim_batch('parked', 'golden') \gset
SELECT position, event_key, event_time AT TIME ZONE 'UTC' AS event_time, payload FROM lanes.read_batch('parked', 0);
SELECT lanes.commit_batch('parked', :lane, :epoch);
COMMIT;
SELECT * FROM waiting ORDER BY key;
DELETE FROM lanes.projection WHERE name = 'parked';
DELETE FROM lanes.log USING lanes.events_table AS e WHERE log.log_id = e.log_id AND e.events_table = 'parking.nanoseconds';

-- A table that was restored from a dump before it was a log: ids that this cluster has not come to.
CREATE TABLE restored (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL DEFAULT 'T', key text NOT NULL,
    ts bigint NOT NULL, payload text NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
INSERT INTO restored (key, ts, payload, xid) VALUES ('a', 0, '{}', '5000000000'), ('b', 0, '{}', '3');
INSERT INTO restored (key, ts, payload) VALUES ('c', 0, '{}');
SELECT * FROM failure($$ SELECT lanes.register_log('restored') $$) \gx
UPDATE parking.restored SET xid = DEFAULT WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
SELECT lanes.register_log('restored') IS NOT NULL AS registered;
SELECT lanes.tick('restored') AS tick;
SELECT t.events FROM lanes.tick AS t JOIN lanes.events_table USING (log_id) WHERE events_table = 'parking.restored';
DELETE FROM lanes.log USING lanes.events_table AS e WHERE log.log_id = e.log_id;
SET client_min_messages = warning;
DROP SCHEMA parking CASCADE;
