-- Makes a log known, so that projections can be bound to it. $1 uuid: the log's id.
INSERT INTO lanes.log (log_id) VALUES ($1) ON CONFLICT (log_id) DO NOTHING
