-- Schema lanes: everything with state. These tables are small (one row a lane) and configuration, not user data.
--
-- Each is marked for pg_dump (SQL-1), has a key that code chooses (no sequence to forget) and no trigger (a restore
-- would fire it). The rows that a projection writes are in the user's own tables, which never depend on these (SQL-3).

CREATE SCHEMA lanes;
COMMENT ON SCHEMA lanes IS 'pg_lanes: logs, projections, lanes and their checkpoints';

CREATE TABLE lanes.log (
    log_id       uuid        NOT NULL,
    horizon      bigint      NOT NULL DEFAULT 0,
    horizon_time timestamptz,
    floor        bigint      NOT NULL DEFAULT 0,
    reported_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    horizon_event_time timestamptz,
    CONSTRAINT log_key PRIMARY KEY (log_id),
    CONSTRAINT log_floor_and_horizon CHECK (floor >= 0 AND horizon >= floor)
);
COMMENT ON TABLE lanes.log IS 'Total orders of events that projections read, as last reported by who holds them';
COMMENT ON COLUMN lanes.log.log_id IS 'Random id of the log';
COMMENT ON COLUMN lanes.log.horizon IS 'Greatest position such that it and every lower one are committed';
COMMENT ON COLUMN lanes.log.horizon_time IS 'When the log reached this horizon';
COMMENT ON COLUMN lanes.log.horizon_event_time IS 'Time of the event at the horizon, as its producer gave it';
COMMENT ON COLUMN lanes.log.floor IS 'Position up to which retention has deleted';
COMMENT ON COLUMN lanes.log.reported_at IS 'When the log last reported, in time of this database';
SELECT pg_catalog.pg_extension_config_dump('lanes.log', '');

CREATE TABLE lanes.projection (
    name         text COLLATE "C" NOT NULL,
    version      int         NOT NULL DEFAULT 1,
    log_id       uuid        NOT NULL,
    definition   jsonb       NOT NULL,
    lanes        int         NOT NULL,
    slots        int         NOT NULL,
    target_table text        NOT NULL,
    defined_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    slot_lanes   int[]       NOT NULL,
    map_version  bigint      NOT NULL DEFAULT 1,
    CONSTRAINT projection_key PRIMARY KEY (name, version),
    -- Two projections of one table could write one row from two lanes. Deferrable, so that two names can be swapped.
    CONSTRAINT projection_target_table UNIQUE (target_table) DEFERRABLE,
    CONSTRAINT projection_log FOREIGN KEY (log_id) REFERENCES lanes.log,
    CONSTRAINT projection_name CHECK (name ~ '^[a-z_][a-z0-9_]{0,62}$'),
    CONSTRAINT projection_version CHECK (version >= 1),
    CONSTRAINT projection_definition CHECK (pg_catalog.jsonb_typeof(definition) = 'object'),
    CONSTRAINT projection_lanes CHECK (lanes BETWEEN 1 AND 1024),
    CONSTRAINT projection_slots CHECK (slots >= 1024),
    CONSTRAINT projection_slot_lanes CHECK (pg_catalog.cardinality(slot_lanes) = slots)
);
COMMENT ON TABLE lanes.projection IS 'Definitions: which events change which table, and how';
COMMENT ON COLUMN lanes.projection.name IS 'Name of the projection';
COMMENT ON COLUMN lanes.projection.version IS 'Version, from 1; a rebuild makes the next';
COMMENT ON COLUMN lanes.projection.log_id IS 'The one log that the projection reads';
COMMENT ON COLUMN lanes.projection.definition IS 'The projection''s own part of the document it was defined by';
COMMENT ON COLUMN lanes.projection.lanes IS 'Number of lanes that own slots: how many workers can work at once';
COMMENT ON COLUMN lanes.projection.slots IS 'Number of slots: fixed hash buckets of keys, which lanes own';
COMMENT ON COLUMN lanes.projection.target_table IS 'The table that a batch of this version may write to: schema and name, quoted where SQL needs it';
COMMENT ON COLUMN lanes.projection.defined_at IS 'When the version was defined';
COMMENT ON COLUMN lanes.projection.slot_lanes IS 'The map: the lane of each slot, slot 0 first';
COMMENT ON COLUMN lanes.projection.map_version IS 'Raised by every change of the map: a batch that was gathered under another version is gathered again';
SELECT pg_catalog.pg_extension_config_dump('lanes.projection', '');

-- Half-filled pages: a checkpoint moves once a batch, and each move should find room in its own page (HOT).
CREATE TABLE lanes.checkpoint (
    projection        text COLLATE "C" NOT NULL,
    version           int    NOT NULL,
    lane              int    NOT NULL,
    log_id            uuid   NOT NULL,
    epoch             bigint NOT NULL DEFAULT 0,
    "position"        bigint NOT NULL DEFAULT 0,
    skipped_null_key  bigint NOT NULL DEFAULT 0,
    owner             text,
    owner_process_id  int,
    owner_application text,
    owner_address     inet,
    owner_started_at  timestamptz,
    claimed_at        timestamptz,
    released_at       timestamptz,
    moved_at          timestamptz,
    stopped_at        timestamptz,
    stopped_reason    text,
    failed_position   bigint,
    tick              bigint NOT NULL DEFAULT 0,
    event_time        timestamptz,
    events            bigint NOT NULL DEFAULT 0,
    stop_tick         bigint,
    stop_position     bigint,
    retired_at        timestamptz,
    lease             interval NOT NULL DEFAULT '30 s',
    taken_over        boolean NOT NULL DEFAULT false,
    stopped_state     text   NOT NULL DEFAULT 'stopped',
    work_ms           double precision NOT NULL DEFAULT 0,
    CONSTRAINT checkpoint_key PRIMARY KEY (projection, version, lane),
    CONSTRAINT checkpoint_projection FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE,
    CONSTRAINT checkpoint_log FOREIGN KEY (log_id) REFERENCES lanes.log,
    CONSTRAINT checkpoint_lane CHECK (lane >= 0),
    CONSTRAINT checkpoint_epoch CHECK (epoch >= 0),
    CONSTRAINT checkpoint_position CHECK ("position" >= 0),
    CONSTRAINT checkpoint_skipped_null_key CHECK (skipped_null_key >= 0),
    CONSTRAINT checkpoint_owner CHECK ((owner IS NULL) = (owner_process_id IS NULL)),
    CONSTRAINT checkpoint_stopped CHECK ((stopped_at IS NULL) = (stopped_reason IS NULL)),
    CONSTRAINT checkpoint_tick CHECK (tick >= 0),
    CONSTRAINT checkpoint_events CHECK (events >= 0),
    CONSTRAINT checkpoint_stop CHECK ((stop_tick IS NULL) = (stop_position IS NULL)),
    CONSTRAINT checkpoint_stopped_state CHECK (stopped_state IN ('stopped', 'backing_off', 'paused')),
    CONSTRAINT checkpoint_work_ms CHECK (work_ms >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE lanes.checkpoint IS 'One row a lane: how far it is, and who claimed it last';
COMMENT ON COLUMN lanes.checkpoint.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.checkpoint.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.checkpoint.lane IS 'Number of the lane, from 0';
COMMENT ON COLUMN lanes.checkpoint.log_id IS 'The log that the position is a place in';
COMMENT ON COLUMN lanes.checkpoint.epoch IS 'Raised by every claim: a batch of an older epoch is refused';
COMMENT ON COLUMN lanes.checkpoint."position" IS 'Every event of the lane up to here is accounted for in the projection''s rows';
COMMENT ON COLUMN lanes.checkpoint.skipped_null_key IS 'Events that changed nothing because their lane key or row key was null';
COMMENT ON COLUMN lanes.checkpoint.owner IS 'Name of the worker that claimed the lane last; null once it released it';
COMMENT ON COLUMN lanes.checkpoint.owner_process_id IS 'Server process of that worker''s session';
COMMENT ON COLUMN lanes.checkpoint.owner_application IS 'application_name of that session';
COMMENT ON COLUMN lanes.checkpoint.owner_address IS 'Client address of that session; null on a Unix socket';
COMMENT ON COLUMN lanes.checkpoint.owner_started_at IS 'When that session began';
COMMENT ON COLUMN lanes.checkpoint.claimed_at IS 'When the lane was claimed last';
COMMENT ON COLUMN lanes.checkpoint.released_at IS 'When its owner released it; null while claimed';
COMMENT ON COLUMN lanes.checkpoint.moved_at IS 'When a batch was committed last';
COMMENT ON COLUMN lanes.checkpoint.stopped_at IS 'When the owner said that it cannot go on; null if it can';
COMMENT ON COLUMN lanes.checkpoint.stopped_reason IS 'Why it cannot go on';
COMMENT ON COLUMN lanes.checkpoint.failed_position IS 'The event that cannot be applied, where the lane stands before one';
COMMENT ON COLUMN lanes.checkpoint.tick IS 'With position, the place in the log: the tick of an events table; 0 in a log of ingestd';
COMMENT ON COLUMN lanes.checkpoint.event_time IS 'Time of the last event that was scanned, as its producer gave it';
COMMENT ON COLUMN lanes.checkpoint.events IS 'Events applied so far: the lane''s load, measured';
COMMENT ON COLUMN lanes.checkpoint.stop_tick IS 'With stop_position, the place at which the lane stops for a change of the map; null if there is none';
COMMENT ON COLUMN lanes.checkpoint.stop_position IS 'See stop_tick';
COMMENT ON COLUMN lanes.checkpoint.retired_at IS 'When the lane lost its last slot; the row stays so that its epoch goes on rising';
COMMENT ON COLUMN lanes.checkpoint.lease IS 'After so long without a sign of life of its owner, others may take the lane';
COMMENT ON COLUMN lanes.checkpoint.taken_over IS 'The lane was taken while its last owner still held the advisory lock; row lock and epoch fence it';
COMMENT ON COLUMN lanes.checkpoint.stopped_state IS 'Whether what is said in stopped_reason passes: stopped, backing_off (it is tried again soon) or paused (it gives way to others)';
COMMENT ON COLUMN lanes.checkpoint.work_ms IS 'Milliseconds that the transactions of its batches took: with events, what an event costs';
SELECT pg_catalog.pg_extension_config_dump('lanes.checkpoint', '');

-- A worker writes its own row only, and lanes are not touched by it: no convoy behind the rows that batches lock. What is
-- in it lives no longer than the sessions, so it is not dumped.
CREATE TABLE lanes.worker (
    worker       text        NOT NULL,
    log_id       uuid        NOT NULL,
    process_id   int         NOT NULL,
    application  text,
    address      inet,
    started_at   timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    CONSTRAINT worker_key PRIMARY KEY (worker, log_id)
) WITH (fillfactor = 50);
COMMENT ON TABLE lanes.worker IS 'Signs of life: one row a worker, written by the session that owns its lanes';
COMMENT ON COLUMN lanes.worker.worker IS 'Name of the worker, as in lanes.claim';
COMMENT ON COLUMN lanes.worker.log_id IS 'The log whose projections it works on';
COMMENT ON COLUMN lanes.worker.process_id IS 'Server process of its session';
COMMENT ON COLUMN lanes.worker.application IS 'application_name of its session';
COMMENT ON COLUMN lanes.worker.address IS 'Client address of its session; null on a Unix socket';
COMMENT ON COLUMN lanes.worker.started_at IS 'When its session began';
COMMENT ON COLUMN lanes.worker.heartbeat_at IS 'Its last sign of life, in time of this database';

CREATE TABLE lanes.reshaping (
    projection    text COLLATE "C" NOT NULL,
    version       int         NOT NULL,
    kind          text        NOT NULL,
    slot_lanes    int[]       NOT NULL,
    involved      int[]       NOT NULL,
    stop_tick     bigint      NOT NULL,
    stop_position bigint      NOT NULL,
    requested_by  text        NOT NULL DEFAULT session_user,
    requested_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT reshaping_key PRIMARY KEY (projection, version),
    CONSTRAINT reshaping_projection FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE
);
COMMENT ON TABLE lanes.reshaping IS 'Changes of maps that wait until the lanes they involve stand at one place: at most one a projection';
COMMENT ON COLUMN lanes.reshaping.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.reshaping.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.reshaping.kind IS 'What was asked for, in words';
COMMENT ON COLUMN lanes.reshaping.slot_lanes IS 'The map that is to be';
COMMENT ON COLUMN lanes.reshaping.involved IS 'The lanes that must stand at the stop first';
COMMENT ON COLUMN lanes.reshaping.stop_tick IS 'With stop_position, the place where they stop';
COMMENT ON COLUMN lanes.reshaping.stop_position IS 'See stop_tick';
COMMENT ON COLUMN lanes.reshaping.requested_by IS 'The user who asked for it';
COMMENT ON COLUMN lanes.reshaping.requested_at IS 'When';
SELECT pg_catalog.pg_extension_config_dump('lanes.reshaping', '');

CREATE TABLE lanes.events_table (
    log_id            uuid        NOT NULL,
    events_table      text        NOT NULL,
    position_column   name        NOT NULL,
    key_column        name        NOT NULL,
    type_column       name        NOT NULL,
    time_column       name        NOT NULL,
    payload_column    name        NOT NULL,
    xid_column        name        NOT NULL,
    time_is_timestamp boolean     NOT NULL,
    system_identifier bigint      NOT NULL,
    registered_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT events_table_key PRIMARY KEY (log_id),
    CONSTRAINT events_table_events_table UNIQUE (events_table),
    CONSTRAINT events_table_log FOREIGN KEY (log_id) REFERENCES lanes.log ON DELETE CASCADE
);
COMMENT ON TABLE lanes.events_table IS 'Tables of events that are logs, and which of their columns say what';
COMMENT ON COLUMN lanes.events_table.log_id IS 'Id of the log';
COMMENT ON COLUMN lanes.events_table.events_table IS 'The table: schema and name, quoted where SQL needs it';
COMMENT ON COLUMN lanes.events_table.position_column IS 'Number of an event, drawn from a sequence';
COMMENT ON COLUMN lanes.events_table.key_column IS 'Its key';
COMMENT ON COLUMN lanes.events_table.type_column IS 'Its type';
COMMENT ON COLUMN lanes.events_table.time_column IS 'Its time';
COMMENT ON COLUMN lanes.events_table.payload_column IS 'Its payload';
COMMENT ON COLUMN lanes.events_table.xid_column IS 'The transaction that appended it';
COMMENT ON COLUMN lanes.events_table.time_is_timestamp IS 'The time is a timestamptz; else it is in milliseconds since 1970 UTC';
COMMENT ON COLUMN lanes.events_table.system_identifier IS 'The database cluster whose transaction ids the table and the ticks hold';
COMMENT ON COLUMN lanes.events_table.registered_at IS 'When the table became a log';
SELECT pg_catalog.pg_extension_config_dump('lanes.events_table', '');

CREATE TABLE lanes.tick (
    log_id        uuid        NOT NULL,
    tick          bigint      NOT NULL,
    snapshot      pg_snapshot NOT NULL,
    ticked_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    events        bigint      NOT NULL,
    last_position bigint      NOT NULL,
    CONSTRAINT tick_key PRIMARY KEY (log_id, tick),
    CONSTRAINT tick_events_table FOREIGN KEY (log_id) REFERENCES lanes.events_table ON DELETE CASCADE,
    CONSTRAINT tick_tick CHECK (tick >= 1)
);
COMMENT ON TABLE lanes.tick IS 'Rounds of an events table: an event belongs to the first tick whose snapshot shows it. A lane that has read a whole tick stands at its last position';
COMMENT ON COLUMN lanes.tick.log_id IS 'Id of the log';
COMMENT ON COLUMN lanes.tick.tick IS 'Number of the tick, from 1, without holes';
COMMENT ON COLUMN lanes.tick.snapshot IS 'What was visible';
COMMENT ON COLUMN lanes.tick.ticked_at IS 'When';
COMMENT ON COLUMN lanes.tick.events IS 'Events of this tick and of all before it';
COMMENT ON COLUMN lanes.tick.last_position IS 'Greatest position of the events of this tick and of all before it';
SELECT pg_catalog.pg_extension_config_dump('lanes.tick', '');

-- What is in them can quote users' data (definitions, reasons), so reading the tables is the DBA's to grant.
GRANT USAGE ON SCHEMA lanes TO PUBLIC;
