-- The workers of a log that live: they told so of late, and their sessions are there. $1 uuid: the log's id.
SELECT w.worker
FROM lanes.worker AS w
WHERE w.log_id = $1 AND w.heartbeat_at > pg_catalog.clock_timestamp() - interval '15 s'
  AND EXISTS (
      SELECT FROM pg_catalog.pg_stat_activity AS a
      -- Whose session of another role this is not told, and then the process has to do.
      WHERE a.pid = w.process_id AND COALESCE(a.backend_start, w.started_at) = w.started_at)
ORDER BY w.worker COLLATE "C"
