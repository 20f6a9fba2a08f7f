-- Must answer the same before and after the upgrade of what 0.3.0.data.sql made.
SELECT log_id, horizon, horizon_time, floor, reported_at FROM lanes.log;
SELECT name, version, log_id, definition, lanes, slots, target_table, defined_at FROM lanes.projection;
SELECT projection, version, lane, log_id, epoch, "position", skipped_null_key, stopped_reason FROM lanes.checkpoint ORDER BY lane;
SELECT * FROM lanes.parked_key;
SELECT projection, slot, key_hash, "position", event_type, event_key, event_ts, payload FROM lanes.parked_event ORDER BY "position";
SELECT projection, "position", reason, skipped_by FROM lanes.skipped_event;
SELECT lane, state, parked_keys, parked_events FROM lanes.status ORDER BY lane;
SELECT has_table_privilege('upgrade_worker_3', 'lanes.parked_event', 'DELETE'),
    has_function_privilege('upgrade_worker_3', 'lanes.release(text, int, bigint)', 'EXECUTE');
SELECT * FROM checkins_total;
SELECT count(*), sum(placed) FROM orders;
