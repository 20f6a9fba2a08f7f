-- The newest ticks of an events table. $1 uuid: the log's id; $2 bigint: a tick that is known; $3 bigint: the most rows.
SELECT tick, events, last_position
FROM (SELECT * FROM lanes.tick WHERE log_id = $1 AND tick > $2 ORDER BY tick DESC LIMIT $3) AS newest
ORDER BY tick
