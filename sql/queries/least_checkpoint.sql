-- The least checkpoint of all projections that read a log, all versions, and whose it is; not of lanes without slots. $1 uuid: the log's id.
-- No row if there is none.
SELECT "position", projection
FROM lanes.checkpoint
WHERE log_id = $1 AND retired_at IS NULL
ORDER BY "position", projection COLLATE "C"
LIMIT 1
