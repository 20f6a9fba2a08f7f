-- What a user of 0.3.0 may have made by the time of the upgrade.
CREATE ROLE upgrade_worker_3;
GRANT SELECT ON lanes.log, lanes.projection TO upgrade_worker_3;
GRANT SELECT, UPDATE ON lanes.checkpoint TO upgrade_worker_3;
GRANT SELECT, INSERT, UPDATE, DELETE ON lanes.parked_key, lanes.parked_event TO upgrade_worker_3;
GRANT EXECUTE ON FUNCTION lanes.claim, lanes.release, lanes.begin_batch, lanes.commit_batch, lanes.park, lanes.unpark TO upgrade_worker_3;
INSERT INTO lanes.log (log_id, horizon) VALUES ('00000000-0000-0000-0000-00000000000a', 90);
SELECT * FROM lanes.define('{"projections": {"orders": {
    "source_events": ["ORDER_PLACED"], "lanes": 2, "lane_key": "event.order_id",
    "target": {"table": "orders", "primary_key": ["order_id"]},
    "fields": {"order_id": "TEXT", "placed": "BIGINT"}, "derive": {"order_id": "event.order_id"},
    "aggregates": {"ORDER_PLACED": {"placed": {"op": "count"}}}}}}');
UPDATE lanes.checkpoint SET "position" = 77, epoch = 3, skipped_null_key = 2 WHERE lane = 1;
CREATE TABLE orders (order_id text PRIMARY KEY, placed bigint);
INSERT INTO orders SELECT 'o' || n, n FROM generate_series(1, 10) AS n;
-- One key failed, and two events wait behind its first.
INSERT INTO lanes.parked_key (projection, version, slot, key, key_hash, sqlstate, error)
VALUES ('orders', 1, lane_of('o1', 1024), 'o1', sha256('o1'), '23514', 'refused by a check');
INSERT INTO lanes.parked_event (projection, version, slot, key_hash, "position", event_type, event_key, event_ts, payload)
SELECT 'orders', 1, lane_of('o1', 1024), sha256('o1'), 70 + n, 'ORDER_PLACED', 'o1', 1, '{"order_id":"o1"}'
FROM generate_series(1, 3) AS n;
SELECT lanes.skip('orders', 72, 'a test order');
SELECT lanes.create_sharded_counter('checkins', '{"show_id text"}', '{checkins}', 4, 'random');
SELECT checkins_add('show-1', 1) FROM generate_series(1, 20);
