-- Must answer the same before and after the upgrade of what 0.2.0.data.sql made.
SELECT log_id, horizon, horizon_time, floor, reported_at FROM lanes.log;
SELECT name, version, log_id, definition, lanes, slots, target_table, defined_at FROM lanes.projection;
SELECT projection, version, lane, log_id, epoch, "position", skipped_null_key, stopped_reason FROM lanes.checkpoint ORDER BY lane;
SELECT count(*), sum(placed) FROM orders;
SELECT * FROM orders_total ORDER BY order_id;
SELECT * FROM behind ORDER BY checkpoint;
SET enable_seqscan = off;
SELECT count(*) FROM orders WHERE lane_of(order_id, 8) = lane_of('o1', 8) AND shard(order_id, 16) = shard('o1', 16);
SELECT has_table_privilege('upgrade_worker_2', 'lanes.checkpoint', 'UPDATE'),
    has_function_privilege('upgrade_worker_2', 'lanes.release(text, int, bigint)', 'EXECUTE');
SELECT indexrelid::regclass, indisvalid FROM pg_index WHERE indrelid = 'orders'::regclass ORDER BY 1;
SELECT * FROM states_last;
SELECT key, shard_of_key(key) FROM sharded ORDER BY key;
