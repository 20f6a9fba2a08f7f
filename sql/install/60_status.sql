-- The view lanes.status.

CREATE VIEW lanes.status AS
WITH held AS MATERIALIZED (
    -- Advisory locks on one bigint key in this database: its high half, its low half, and 1 for "one key".
    SELECT l.pid, l.classid, l.objid
    FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
), lane AS (
    SELECT p.defined_at, p.slots, p.slot_lanes, p.map_version, c.*, p.name || '~' || p.version::text AS versioned_name
    FROM lanes.projection AS p
    JOIN lanes.checkpoint AS c ON c.projection = p.name AND c.version = p.version
    WHERE c.retired_at IS NULL
), owned AS (
    SELECT n.*,
        -- Whether somebody owns the lane is asked of the lock, never of the stored columns: after a crash or a restore
        -- these still name an owner. Only a lane that was taken in spite of a lock is known by its owner's session and
        -- signs of life.
        EXISTS (
            SELECT FROM held AS h
            WHERE h.pid = n.owner_process_id
              AND h.classid = ((lanes.lock_key(n.versioned_name, n.lane) >> 32) & 4294967295::bigint)::oid
              AND h.objid = (lanes.lock_key(n.versioned_name, n.lane) & 4294967295::bigint)::oid
        ) OR (n.taken_over AND GREATEST(n.claimed_at, n.moved_at, w.heartbeat_at) + n.lease > pg_catalog.clock_timestamp()
            AND EXISTS (
                SELECT FROM pg_catalog.pg_stat_activity AS a
                WHERE a.pid = n.owner_process_id AND COALESCE(a.backend_start, n.owner_started_at) = n.owner_started_at))
            AS is_owned,
        w.heartbeat_at
    FROM lane AS n
    LEFT JOIN lanes.worker AS w
        ON (w.worker, w.log_id, w.process_id, w.started_at) = (n.owner, n.log_id, n.owner_process_id, n.owner_started_at)
), head AS (
    -- What of an events table no tick shows yet counts as lag from the next tick on.
    SELECT l.*, t.tick, t.events,
        (SELECT pg_catalog.max(e.events_table) FROM lanes.events_table AS e WHERE e.log_id = l.log_id) AS events_table
    FROM lanes.log AS l
    LEFT JOIN LATERAL (
        SELECT t.tick, t.events FROM lanes.tick AS t WHERE t.log_id = l.log_id ORDER BY t.tick DESC LIMIT 1) AS t ON true
), behind AS (
    SELECT s.*, h.horizon, h.reported_at, h.horizon_event_time,
        CASE WHEN s.tick = 0 THEN GREATEST(h.horizon - s."position", 0::bigint)
            -- The events of a tick that the lane has read in part count as not applied.
            ELSE COALESCE(h.events - COALESCE((
                SELECT t.events FROM lanes.tick AS t
                WHERE t.log_id = s.log_id AND (t.tick, t.last_position) <= (s.tick, s."position")
                ORDER BY t.tick DESC LIMIT 1), 0::bigint), 0::bigint)
        END AS lag
    FROM owned AS s
    JOIN head AS h ON h.log_id = s.log_id
)
SELECT
    s.projection,
    s.version,
    s.lane,
    @extschema@.checkpoint_name(s.versioned_name, s.lane) AS checkpoint,
    CASE
        WHEN (s.tick, s."position") = (s.stop_tick, s.stop_position) THEN 'waiting_at_stop'
        WHEN NOT s.is_owned THEN 'unowned'
        WHEN s.stopped_at IS NOT NULL THEN s.stopped_state
        ELSE 'running'
    END AS state,
    CASE
        WHEN (s.tick, s."position") = (s.stop_tick, s.stop_position) THEN
            pg_catalog.format(CASE WHEN r.behind IS NULL THEN '%s is made with the next batch' ELSE '%s waits for lanes %s' END, r.kind, r.behind)
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
    s.horizon,
    s.lag,
    s.skipped_null_key,
    s.claimed_at,
    CASE WHEN NOT s.is_owned THEN GREATEST(s.defined_at, s.claimed_at, s.moved_at, s.released_at) END AS unowned_since,
    s.moved_at,
    s.log_id,
    s.reported_at AS log_reported_at,
    pg_catalog.clock_timestamp() - s.reported_at AS log_report_age,
    w.parked_keys,
    w.parked_events,
    s.failed_position,
    s.tick,
    CASE WHEN s.lag = 0 OR s.horizon_event_time < s.event_time THEN 0::numeric
        ELSE EXTRACT(epoch FROM s.horizon_event_time - s.event_time) END AS lag_seconds,
    CASE WHEN s.stop_tick IS NOT NULL THEN lanes.place(s.stop_tick, s.stop_position) END AS stop_at,
    s.slots_owned AS slots,
    lanes.is_canonical(s.slot_lanes) AS lane_of_is_right,
    s.events,
    s.heartbeat_at
FROM (
    SELECT b.*, (SELECT pg_catalog.count(*) FROM unnest(b.slot_lanes) AS o WHERE o = b.lane) AS slots_owned FROM behind AS b
) AS s
LEFT JOIN LATERAL (
    SELECT r.kind, (
        SELECT pg_catalog.string_agg(c.lane::text, ', ' ORDER BY c.lane) FROM lanes.checkpoint AS c
        WHERE c.projection = r.projection AND c.version = r.version AND c.lane = ANY (r.involved)
          AND (c.tick, c."position") <> (r.stop_tick, r.stop_position)) AS behind
    FROM lanes.reshaping AS r WHERE r.projection = s.projection AND r.version = s.version
) AS r ON true
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(DISTINCT (e.slot, e.key_hash)) AS parked_keys, pg_catalog.count(*) AS parked_events
    FROM lanes.parked_event AS e
    WHERE e.projection = s.projection AND e.version = s.version AND s.slot_lanes[e.slot + 1] = s.lane
) AS w
ORDER BY s.projection, s.version, s.lane;
COMMENT ON VIEW lanes.status IS 'One row a lane of every projection: who owns it now, how far it is, and why it does not go on';
COMMENT ON COLUMN lanes.status.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.status.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.status.lane IS 'Number of the lane, from 0';
COMMENT ON COLUMN lanes.status.checkpoint IS 'Name of the lane''s checkpoint';
COMMENT ON COLUMN lanes.status.state IS 'running, backing_off (its last batch failed, and it tries again), paused (it gives way to projections that come first), stopped (owned, but it cannot go on), waiting_at_stop (for other lanes, so that the map can change) or unowned';
COMMENT ON COLUMN lanes.status.reason IS 'Why the lane is not running; null if it is';
COMMENT ON COLUMN lanes.status.owner IS 'Worker that owns the lane now; null if none does';
COMMENT ON COLUMN lanes.status.owner_process_id IS 'Server process of that worker''s session; null if none owns it';
COMMENT ON COLUMN lanes.status.epoch IS 'Number of claims so far';
COMMENT ON COLUMN lanes.status."position" IS 'Every event of the lane up to here is applied';
COMMENT ON COLUMN lanes.status.horizon IS 'Horizon of the log at its last report';
COMMENT ON COLUMN lanes.status.lag IS 'Events between the two, whoever they belong to; 0 if the lane is ahead of the report';
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

COMMENT ON COLUMN lanes.status.tick IS 'With position, the lane''s place in an events table; 0 in a log of ingestd';
COMMENT ON COLUMN lanes.status.lag_seconds IS 'Seconds between the time of the event at the horizon and that of the last event scanned, as their producers gave them; 0 without lag, null if unknown';
COMMENT ON COLUMN lanes.status.stop_at IS 'Where the lane stops for a change of the map; null if there is none';
COMMENT ON COLUMN lanes.status.slots IS 'Number of slots that the lane owns';
COMMENT ON COLUMN lanes.status.lane_of_is_right IS 'Whether lane_of(key, number of lanes) names the lane of a key; lanes.lane_for always does';
COMMENT ON COLUMN lanes.status.events IS 'Events that the lane has applied';
COMMENT ON COLUMN lanes.status.heartbeat_at IS 'Last heartbeat of its owner''s session';

-- A reason can quote a row's values, so the view is for those who monitor the server, not for everybody.
GRANT SELECT ON lanes.status TO pg_monitor;
