-- The parked keys with what waits of them. $1 text: a projection's name, or null for all.
SELECT k.projection || CASE WHEN k.version > 1 THEN '~' || k.version ELSE '' END,
       k.key, pg_catalog.min(e."position"), pg_catalog.count(*), k.attempts,
       COALESCE(pg_catalog.to_char(k.next_try_at, 'YYYY-MM-DD HH24:MI:SS'), 'when asked'), k.sqlstate, k.error
FROM lanes.parked_key AS k
JOIN lanes.parked_event AS e USING (projection, version, slot, key_hash)
WHERE k.projection = COALESCE($1, k.projection)
GROUP BY k.projection, k.version, k.slot, k.key_hash
ORDER BY 1, 3
