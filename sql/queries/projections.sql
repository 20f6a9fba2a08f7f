-- The projections that read a log. $1 uuid: the log's id.
SELECT name, definition, map_version, slot_lanes
FROM lanes.projection
WHERE log_id = $1 AND version = 1
ORDER BY name COLLATE "C"
