-- What was reported of a log before, and whether anything of it was applied. $1 uuid: the log's id. Gives the horizon; the
-- time of storing there in milliseconds since 1970 UTC, null if that was not told; and whether a lane has moved.
SELECT l.horizon,
       pg_catalog.round(EXTRACT(EPOCH FROM l.horizon_time) * 1000)::bigint,
       EXISTS (SELECT FROM lanes.checkpoint AS c WHERE c.log_id = l.log_id AND c."position" > 0)
FROM lanes.log AS l
WHERE l.log_id = $1
