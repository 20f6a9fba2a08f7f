-- What waits of a parked key, in order. $1 text: the projection; $2 text: the key; $3 bigint: the most rows.
SELECT k.sqlstate, k.error, pg_catalog.count(*) OVER (), e."position", e.event_type, e.event_key, e.event_ts, e.payload
FROM lanes.parked_key AS k
JOIN lanes.parked_event AS e USING (projection, version, slot, key_hash)
WHERE k.projection = $1 AND k.key = $2
ORDER BY e."position"
LIMIT $3
