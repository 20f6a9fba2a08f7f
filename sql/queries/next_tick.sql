-- The first tick that is not read to its end: its number, last position, the snapshot before it or null, and its own.
-- $1 uuid: the log's id; $2 bigint and $3 bigint: tick and position up to which everything is read.
SELECT t.tick, t.last_position,
       (SELECT b.snapshot::text FROM lanes.tick AS b
        WHERE b.log_id = t.log_id AND b.tick < t.tick ORDER BY b.tick DESC LIMIT 1),
       t.snapshot::text
FROM lanes.tick AS t
WHERE t.log_id = $1 AND (t.tick, t.last_position) > ($2, $3)
ORDER BY t.tick
LIMIT 1
