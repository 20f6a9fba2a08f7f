-- The map of slots: changes of it, who waits for whom, and what is refused. (Under load: tests/tests/lane_chaos.rs.)
\set log '00000000-0000-0000-0000-00000000000c'
INSERT INTO lanes.log (log_id, horizon) VALUES (:'log', 1000);
SELECT * FROM lanes.define(document('parcels', '{"lanes": 4, "target": {"table": "parcels", "primary_key": ["order_id"]}}'), :'log');
CREATE VIEW parcels_lane AS
    SELECT lane, state, reason, "position" AS at, stop_at, slots, lane_of_is_right AS plain
    FROM lanes.status WHERE projection = 'parcels';
CREATE FUNCTION stand(VARIADIC positions bigint[]) RETURNS void LANGUAGE sql AS $$
    UPDATE lanes.checkpoint SET "position" = positions[lane + 1]
    WHERE projection = 'parcels' AND lane < cardinality(positions)
$$;
SELECT lanes.lane_for('parcels', 'o-' || n) = lane_of('o-' || n, 4) AS equal, count(*) FROM generate_series(1, 500) AS n GROUP BY 1;

-- How long lanes would wait for each other: at 2 ms an event, and a quarter of the events each, the lanes need 15, 10, 5 and
-- 0 ms to the place of the last one. Before any event was applied nobody knows.
SELECT stand(10, 20, 30, 40);
SELECT lane, pause, pause_ms, note FROM lanes.explain_resize('parcels', 2);
UPDATE lanes.checkpoint SET events = 100, work_ms = 200 WHERE projection = 'parcels';
SELECT lane, pause_ms FROM lanes.explain_resize('parcels', 2);
UPDATE lanes.checkpoint SET events = 0, work_ms = 0 WHERE projection = 'parcels';

-- To a multiple: only splits, done at once, each new lane where its parent stands.
SELECT lane, slots, slots_then, slots_moved_in, pause, note FROM lanes.explain_resize('parcels', 8);
SELECT lanes.resize('parcels', 8);
SELECT * FROM parcels_lane;
SELECT lanes.lane_for('parcels', 'o-' || n) = lane_of('o-' || n, 8) AS equal, count(*) FROM generate_series(1, 500) AS n GROUP BY 1;
SELECT lanes, slots, map_version FROM lanes.projection WHERE name = 'parcels';

-- To a divisor: pairs merge, so all lanes first come to one place.
SELECT lanes.resize('parcels', 4);
SELECT * FROM parcels_lane;
SELECT kind, involved, stop_position, requested_by = current_user AS mine FROM lanes.reshaping;
-- One change at a time.
SELECT code, message, regexp_replace(detail, 'by \w+ at [^,]*', 'by … at …') AS detail, hint
FROM failure($$ SELECT lanes.split('parcels', 0) $$) \gx
-- No batch goes past the stop.
BEGIN;
SELECT lane, epoch FROM lanes.claim('parcels', 'w1', :'log') \gset
SELECT "position", stop_position FROM lanes.begin_batch('parcels', :lane, :epoch, :'log');
SELECT * FROM failure(format('SELECT lanes.commit_batch(%L, %s, %s, 41)', 'parcels', :lane, :epoch)) \gx
SELECT lanes.commit_batch('parcels', :lane, :epoch, 40);
SELECT code, message FROM failure($$ SELECT lanes.resize('parcels', 2) $$);
ROLLBACK;
-- Taken back.
SELECT lanes.cancel_resize('parcels') AS cancelled, lanes.cancel_resize('parcels') AS again;
SELECT DISTINCT state, stop_at FROM parcels_lane;
-- When all stand there, whoever comes next makes the change; retired lanes are gone from sight, and their owners fenced.
SELECT lanes.resize('parcels', 4);
SELECT lane, epoch FROM lanes.claim('parcels', 'w1', :'log') \gset
SELECT lanes.finish_reshaping('parcels') AS too_early;
SELECT stand(40, 40, 40, 40, 40, 40, 40, 40);
SELECT lanes.finish_reshaping('parcels') AS done, lanes.finish_reshaping('parcels') AS again;
SELECT * FROM parcels_lane;
SELECT lane, "position", retired_at IS NOT NULL AS retired FROM lanes.checkpoint WHERE projection = 'parcels' ORDER BY lane;
SELECT lanes.release('parcels', :lane, :epoch);
-- A number that comes back goes on with its epochs.
SELECT lanes.split('parcels', 1);
SELECT lane, epoch, "position", retired_at FROM lanes.checkpoint WHERE projection = 'parcels' AND lane = 4;
SELECT lane, slots, plain FROM parcels_lane;

-- The fewest slots move, where lane_of would move nearly all.
SELECT lane, slots, slots_then, slots_moved_in, pause, note FROM lanes.explain_resize('parcels', 3);
SELECT sum(slots_moved_in) AS fewest FROM lanes.explain_resize('parcels', 3);
SELECT sum(slots_moved_in) AS modulo FROM lanes.explain_resize('parcels', 3, modulo => true);
SELECT lanes.resize('parcels', 3);
SELECT lane, slots, plain FROM parcels_lane;
SELECT lanes.resize('parcels', 3, modulo => true);
SELECT lane, slots, plain FROM parcels_lane;
SELECT lanes.lane_for('parcels', 'o-' || n) = lane_of('o-' || n, 3) AS equal, count(*) FROM generate_series(1, 500) AS n GROUP BY 1;

-- One slot alone, others moved, two lanes made one.
SELECT lanes.isolate('parcels', 'o-1') AS lane;
SELECT lanes.lane_for('parcels', 'o-1') AS lane, lanes.isolate('parcels', 'o-1') AS again;
SELECT lanes.move('parcels', '{0,1,2}', 7);
SELECT lane, slots FROM parcels_lane;
SELECT lanes.merge('parcels', 0, 3), lanes.merge('parcels', 0, 7);
SELECT lane, slots FROM parcels_lane;

-- Parked keys go with their slot, also when it gets another number.
INSERT INTO lanes.parked_key (projection, version, slot, key, key_hash, sqlstate, error)
SELECT 'parcels', 1, lane_of('o-9', slots), 'o-9', sha256('o-9'), '23514', 'refused' FROM lanes.projection WHERE name = 'parcels';
INSERT INTO lanes.parked_event (projection, version, slot, key_hash, "position", event_type, event_key, event_ts, payload)
SELECT projection, version, slot, key_hash, 40, 'ORDER_PLACED', key, 0, '{}' FROM lanes.parked_key WHERE key = 'o-9';
SELECT slots FROM lanes.projection WHERE name = 'parcels' \gset before_
SELECT lanes.resize('parcels', 20, modulo => true);
SELECT p.slots > :before_slots AS refined, k.slot = lane_of('o-9', p.slots) AS key_follows, e.slot = k.slot AS event_follows
FROM lanes.projection AS p, lanes.parked_key AS k, lanes.parked_event AS e
WHERE p.name = 'parcels' AND k.key = 'o-9' AND e.key_hash = k.key_hash;
SELECT lane = lanes.lane_for('parcels', 'o-9') AS its_lane, parked_keys FROM lanes.status WHERE projection = 'parcels' AND parked_keys > 0;
SELECT lanes.wait_for('parcels', 'o-9', 40, '0 s') AS parked, lanes.wait_for('parcels', 'o-8', 40, '0 s') AS applied,
    lanes.wait_for('parcels', 'o-8', 41, '10 ms') AS not_yet;

-- What is refused.
SELECT * FROM failure($$ SELECT lanes.resize('parcels', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.resize('parcels', 1025) $$) \gx
SELECT * FROM failure($$ SELECT lanes.resize('parcels', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.resize('nothing', 2) $$) \gx
SELECT * FROM failure($$ SELECT lanes.split('parcels', 99) $$) \gx
SELECT * FROM failure($$ SELECT lanes.split('parcels', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.merge('parcels', 0, 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.merge('parcels', 0, 99) $$) \gx
SELECT * FROM failure($$ SELECT lanes.move('parcels', '{999999}', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.move('parcels', '{1,NULL}', 0) $$) \gx
SELECT * FROM failure($$ SELECT lanes.move('parcels', '{1}', 1024) $$) \gx
SELECT * FROM failure($$ SELECT lanes.isolate('parcels', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.wait_for('parcels', 'k', NULL) $$) \gx
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM failure($$ SELECT lanes.resize('parcels', 2) $$) \gx
ROLLBACK;
DELETE FROM lanes.projection WHERE name = 'parcels';
DELETE FROM lanes.log WHERE log_id = :'log';
DROP VIEW parcels_lane;
DROP FUNCTION stand;
