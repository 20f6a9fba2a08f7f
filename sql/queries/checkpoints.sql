-- The checkpoints of all lanes that read a log. $1 uuid: the log's id.
SELECT projection, lane, "position"
FROM lanes.checkpoint
WHERE log_id = $1 AND version = 1
