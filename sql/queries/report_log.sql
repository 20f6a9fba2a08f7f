-- What the daemon says of its log, at most once a second, when it has seen that the log is the one of the report before
-- (reported_log.sql).
-- $1 uuid: the log's id; $2 bigint: horizon; $3 bigint: time of storing at the horizon in milliseconds since 1970 UTC,
-- null if the log is empty; $4 bigint: floor; $5 bigint: the time of the event at the horizon, likewise.
INSERT INTO lanes.log (log_id, horizon, horizon_time, floor, reported_at, horizon_event_time)
VALUES ($1, $2, lanes.time_of($3), $4, pg_catalog.clock_timestamp(), lanes.time_of($5))
ON CONFLICT (log_id) DO UPDATE
SET horizon = EXCLUDED.horizon,
    horizon_time = EXCLUDED.horizon_time,
    horizon_event_time = EXCLUDED.horizon_event_time,
    floor = EXCLUDED.floor,
    reported_at = EXCLUDED.reported_at
