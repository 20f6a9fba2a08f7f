-- How the lanes that read a log stand. $1 uuid: the log's id.
-- Whether somebody owns a lane is asked of its lock, as the view lanes.status does: after a crash the columns still name
-- an owner. One that was taken in spite of a lock is owned for as long as the session is there. Whoever lets the lease run out
-- is passed over: lanes.claim takes the lane in spite of its lock.
SELECT c.projection, c.lane, c.tick, c."position", c.stop_tick, c.stop_position, c.events,
       CASE WHEN (h.pid IS NOT NULL OR (c.taken_over AND NOT lanes.owner_is_gone(c)))
                -- The first costs little, and is true of all that tell that they live.
                AND (w.heartbeat_at > pg_catalog.clock_timestamp() - c.lease OR NOT lanes.lease_ran_out(c))
            THEN c.owner END AS owner
FROM lanes.checkpoint AS c
LEFT JOIN lanes.worker AS w ON w.worker = c.owner AND w.log_id = c.log_id AND w.process_id = c.owner_process_id
LEFT JOIN (
    SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint AS key
    FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
) AS h ON h.pid = c.owner_process_id AND h.key = lanes.lock_key(c.projection, c.lane)
WHERE c.log_id = $1 AND c.version = 1 AND c.retired_at IS NULL
ORDER BY c.projection COLLATE "C", c.lane
