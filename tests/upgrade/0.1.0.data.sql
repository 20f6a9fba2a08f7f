-- What a user of 0.1.0 may have made by the time of the upgrade.
CREATE ROLE upgrade_worker;
GRANT SELECT ON lanes.log, lanes.projection TO upgrade_worker;
GRANT SELECT, UPDATE ON lanes.checkpoint TO upgrade_worker;
GRANT EXECUTE ON FUNCTION lanes.claim, lanes.release, lanes.begin_batch, lanes.commit_batch TO upgrade_worker;
INSERT INTO lanes.log (log_id, horizon) VALUES ('00000000-0000-0000-0000-00000000000a', 90);
SELECT * FROM lanes.define('{"projections": {"orders": {
    "source_events": ["ORDER_PLACED"], "lanes": 2, "lane_key": "event.order_id",
    "target": {"table": "orders", "primary_key": ["order_id"]},
    "fields": {"order_id": "TEXT", "placed": "BIGINT"}, "derive": {"order_id": "event.order_id"},
    "aggregates": {"ORDER_PLACED": {"placed": {"op": "count"}}}}}}');
UPDATE lanes.checkpoint SET "position" = 77, epoch = 3 WHERE lane = 1;
CREATE TABLE orders (order_id text, bucket int, placed bigint, PRIMARY KEY (order_id, bucket));
INSERT INTO orders SELECT 'o' || n % 10, n, n FROM generate_series(1, 100) AS n;
CREATE INDEX orders_by_lane ON orders (lane_of(order_id, 8), shard(order_id, 16));
SELECT lanes.create_sum_view('orders_total', 'orders', '{order_id}', '{placed}');
CREATE VIEW behind AS SELECT checkpoint, lag FROM lanes.status WHERE lag > 0;
