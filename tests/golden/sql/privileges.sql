-- What a role can do that was granted nothing: look up keys, and nothing else.
CREATE ROLE golden_plain;
CREATE ROLE golden_monitor IN ROLE pg_monitor;
SET ROLE golden_plain;
SELECT lane_of('order-42', 8), shard('s-99', 16), checkpoint_name('orders', 3), lanes.lock_key('orders', 3);
SELECT name FROM lanes.check_definition(document('orders'));
RESET ROLE;
-- Open are only functions that compute, or that read with the rights of the caller; and of relations the list of shard columns.
SELECT p.oid::regprocedure AS open_function
FROM pg_depend AS d JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
    AND p.pronamespace = 'lanes'::regnamespace AND has_function_privilege('golden_plain', p.oid, 'EXECUTE')
ORDER BY p.oid::regprocedure::text;
SELECT c.oid::regclass AS open_relation
FROM pg_depend AS d JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
    AND has_table_privilege('golden_plain', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER');
SELECT has_schema_privilege('golden_plain', 'lanes', 'USAGE') AS usage, has_schema_privilege('golden_plain', 'lanes', 'CREATE') AS create;
-- Who monitors the server sees the status.
SET ROLE golden_monitor;
SELECT count(*) >= 0 AS readable FROM lanes.status;
RESET ROLE;
-- A worker with the grants that sql/README.md names, and no more, can do its work.
CREATE ROLE golden_worker;
GRANT SELECT ON lanes.log, lanes.projection, lanes.events_table, lanes.tick, lanes.reshaping TO golden_worker;
GRANT SELECT, UPDATE ON lanes.checkpoint TO golden_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON lanes.worker, lanes.parked_key, lanes.parked_event TO golden_worker;
GRANT SELECT, INSERT, UPDATE ON lanes.skipped_event TO golden_worker;
GRANT EXECUTE ON FUNCTION lanes.claim, lanes.claim_batch, lanes.take_lane, lanes.end_session, lanes.release, lanes.heartbeat,
    lanes.goodbye, lanes.begin_batch, lanes.open_batch, lanes.read_batch, lanes.commit_batch, lanes.finish_reshaping,
    lanes.stop_lane, lanes.hold_lane, lanes.stop_at_event, lanes.parked_keys, lanes.parked_events, lanes.park, lanes.unpark, lanes.skip_failed,
    lanes.skips_ahead, lanes.lock_lane, lanes.take_lane_lock, lanes.give_up_lane_lock TO golden_worker;
-- Workers also tick, and change the map when the lanes that a change involves have come to their stop:
GRANT UPDATE (slot_lanes, slots, lanes, map_version) ON lanes.projection TO golden_worker;
GRANT UPDATE (horizon, horizon_time, horizon_event_time, reported_at) ON lanes.log TO golden_worker;
GRANT INSERT ON lanes.checkpoint TO golden_worker;
GRANT DELETE ON lanes.reshaping TO golden_worker;
GRANT INSERT, DELETE ON lanes.tick TO golden_worker;
GRANT EXECUTE ON FUNCTION lanes.apply_map, lanes.tick TO golden_worker;
SET ROLE golden_worker;
BEGIN;
SELECT lane FROM lanes.claim('orders', 'w', '00000000-0000-0000-0000-00000000000a') \gset
SELECT epoch FROM lanes.checkpoint WHERE lane = :lane \gset
SELECT target_table FROM lanes.begin_batch('orders', :lane, :epoch, '00000000-0000-0000-0000-00000000000a');
SELECT lanes.commit_batch('orders', :lane, :epoch, 1000);
SELECT lanes.stop_lane('orders', :lane, :epoch, 'done');
SELECT lanes.hold_lane('orders', :lane, :epoch, 'paused', 'others come first');
SELECT lanes.release('orders', :lane, :epoch);
ROLLBACK;
SELECT * FROM failure($$ SELECT lanes.define(document('orders'), '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ DELETE FROM lanes.checkpoint $$) \gx
RESET ROLE;
-- Procedures that commit cannot, so they begin with COMMIT and set it after each.
SELECT p.oid::regprocedure AS unsafe
FROM pg_proc AS p
WHERE p.pronamespace = 'lanes'::regnamespace AND p.prokind = 'p'
    AND (p.prosecdef OR p.prosrc !~ '\mBEGIN\s+COMMIT;'
        OR regexp_count(p.prosrc, 'COMMIT;') <> regexp_count(p.prosrc, 'COMMIT;\s+PERFORM pg_catalog.set_config\(''search_path'', ''pg_catalog, pg_temp'', true\);'));
-- Functions that are not C fix their search_path and run with the caller's rights.
SELECT p.oid::regprocedure AS unsafe
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.pronamespace = 'lanes'::regnamespace AND p.prokind <> 'p'
    AND (p.prosecdef OR l.lanname <> 'c' AND p.prosqlbody IS NULL
        AND p.proconfig IS DISTINCT FROM '{"search_path=pg_catalog, pg_temp"}');
DROP OWNED BY golden_worker;
DROP ROLE golden_worker;
DROP ROLE golden_plain;
DROP ROLE golden_monitor;
