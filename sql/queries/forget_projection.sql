-- Lets go of a projection: its definition and checkpoints go, its table stays. $1 text: its name; $2 uuid: the log's id.
DELETE FROM lanes.projection WHERE name = $1 AND log_id = $2
