-- The view lanes.status.

CREATE VIEW lanes.status AS
WITH held AS MATERIALIZED (
    -- Advisory locks on one bigint key in this database: its high half, its low half, and 1 for "one key".
    SELECT l.pid, l.classid, l.objid
    FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
), lane AS (
    SELECT p.defined_at, p.lanes, c.*, p.name || '~' || p.version::text AS versioned_name
    FROM lanes.projection AS p
    JOIN lanes.checkpoint AS c ON c.projection = p.name AND c.version = p.version
), owned AS (
    SELECT n.*,
        -- Whether somebody owns the lane is asked of the lock, never of the stored columns: after a crash or a restore
        -- these still name an owner.
        EXISTS (
            SELECT FROM held AS h
            WHERE h.pid = n.owner_process_id
              AND h.classid = ((lanes.lock_key(n.versioned_name, n.lane) >> 32) & 4294967295::bigint)::oid
              AND h.objid = (lanes.lock_key(n.versioned_name, n.lane) & 4294967295::bigint)::oid
        ) AS is_owned
    FROM lane AS n
)
SELECT
    s.projection,
    s.version,
    s.lane,
    @extschema@.checkpoint_name(s.versioned_name, s.lane) AS checkpoint,
    CASE WHEN NOT s.is_owned THEN 'unowned' WHEN s.stopped_at IS NOT NULL THEN 'stopped' ELSE 'running' END AS state,
    CASE
        WHEN s.stopped_reason IS NOT NULL THEN s.stopped_reason
        WHEN s.is_owned THEN NULL
        WHEN s.claimed_at IS NULL THEN 'never claimed'
        WHEN s.released_at IS NOT NULL THEN 'released by its owner'
        ELSE 'the session of its last owner is gone'
    END AS reason,
    CASE WHEN s.is_owned THEN s.owner END AS owner,
    CASE WHEN s.is_owned THEN s.owner_process_id END AS owner_process_id,
    s.epoch,
    s."position",
    l.horizon,
    GREATEST(l.horizon - s."position", 0::bigint) AS lag,
    s.skipped_null_key,
    s.claimed_at,
    CASE WHEN NOT s.is_owned THEN GREATEST(s.defined_at, s.claimed_at, s.moved_at, s.released_at) END AS unowned_since,
    s.moved_at,
    s.log_id,
    l.reported_at AS log_reported_at,
    pg_catalog.clock_timestamp() - l.reported_at AS log_report_age,
    w.parked_keys,
    w.parked_events,
    s.failed_position
FROM owned AS s
JOIN lanes.log AS l ON l.log_id = s.log_id
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(DISTINCT (e.slot, e.key_hash)) AS parked_keys, pg_catalog.count(*) AS parked_events
    FROM lanes.parked_event AS e
    WHERE e.projection = s.projection AND e.version = s.version AND e.slot % s.lanes = s.lane
) AS w
ORDER BY s.projection, s.version, s.lane;
COMMENT ON VIEW lanes.status IS 'One row a lane of every projection: who owns it now, how far it is, and why it does not go on';
COMMENT ON COLUMN lanes.status.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.status.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.status.lane IS 'Number of the lane, from 0';
COMMENT ON COLUMN lanes.status.checkpoint IS 'Name of the lane''s checkpoint';
COMMENT ON COLUMN lanes.status.state IS 'running, stopped (owned, but it cannot go on) or unowned';
COMMENT ON COLUMN lanes.status.reason IS 'Why the lane is not running; null if it is';
COMMENT ON COLUMN lanes.status.owner IS 'Worker that owns the lane now; null if none does';
COMMENT ON COLUMN lanes.status.owner_process_id IS 'Server process of that worker''s session; null if none owns it';
COMMENT ON COLUMN lanes.status.epoch IS 'Number of claims so far';
COMMENT ON COLUMN lanes.status."position" IS 'Every event of the lane up to here is applied';
COMMENT ON COLUMN lanes.status.horizon IS 'Horizon of the log at its last report';
COMMENT ON COLUMN lanes.status.lag IS 'Positions between the two; 0 if the lane is ahead of the report';
COMMENT ON COLUMN lanes.status.skipped_null_key IS 'Events that changed nothing because their lane key or row key was null';
COMMENT ON COLUMN lanes.status.claimed_at IS 'When the lane was claimed last';
COMMENT ON COLUMN lanes.status.unowned_since IS 'Last sign of life of an owner (of the projection''s definition, if there never was one); null if owned';
COMMENT ON COLUMN lanes.status.moved_at IS 'When a batch was committed last';
COMMENT ON COLUMN lanes.status.log_id IS 'The log that the projection reads';
COMMENT ON COLUMN lanes.status.log_reported_at IS 'When the log last reported its horizon';
COMMENT ON COLUMN lanes.status.log_report_age IS 'How long ago that was: a great age means that the daemon is away, and that horizon and lag are old';
COMMENT ON COLUMN lanes.status.parked_keys IS 'Keys of the lane whose first waiting event could not be applied';
COMMENT ON COLUMN lanes.status.parked_events IS 'Events of these keys that wait';
COMMENT ON COLUMN lanes.status.failed_position IS 'The event that a stopped lane stands before, if it is one event''s fault';

-- A reason can quote a row's values, so the view is for those who monitor the server, not for everybody.
GRANT SELECT ON lanes.status TO pg_monitor;
