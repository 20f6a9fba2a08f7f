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
    CONSTRAINT log_key PRIMARY KEY (log_id),
    CONSTRAINT log_floor_and_horizon CHECK (floor >= 0 AND horizon >= floor)
);
COMMENT ON TABLE lanes.log IS 'Total orders of events that projections read, as last reported by who holds them';
COMMENT ON COLUMN lanes.log.log_id IS 'Random id of the log';
COMMENT ON COLUMN lanes.log.horizon IS 'Greatest position such that it and every lower one are committed';
COMMENT ON COLUMN lanes.log.horizon_time IS 'When the log reached this horizon';
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
    CONSTRAINT projection_key PRIMARY KEY (name, version),
    -- Two projections of one table could write one row from two lanes. Deferrable, so that two names can be swapped.
    CONSTRAINT projection_target_table UNIQUE (target_table) DEFERRABLE,
    CONSTRAINT projection_log FOREIGN KEY (log_id) REFERENCES lanes.log,
    CONSTRAINT projection_name CHECK (name ~ '^[a-z_][a-z0-9_]{0,62}$'),
    CONSTRAINT projection_version CHECK (version >= 1),
    CONSTRAINT projection_definition CHECK (pg_catalog.jsonb_typeof(definition) = 'object'),
    CONSTRAINT projection_lanes CHECK (lanes BETWEEN 1 AND 1024),
    CONSTRAINT projection_slots CHECK (slots >= 1024 AND slots % lanes = 0)
);
COMMENT ON TABLE lanes.projection IS 'Definitions: which events change which table, and how';
COMMENT ON COLUMN lanes.projection.name IS 'Name of the projection';
COMMENT ON COLUMN lanes.projection.version IS 'Version, from 1; a rebuild makes the next';
COMMENT ON COLUMN lanes.projection.log_id IS 'The one log that the projection reads';
COMMENT ON COLUMN lanes.projection.definition IS 'The projection''s own part of the document it was defined by';
COMMENT ON COLUMN lanes.projection.lanes IS 'Number of lanes: how many workers can work at once';
COMMENT ON COLUMN lanes.projection.slots IS 'Number of slots: fixed hash buckets of keys, which lanes own';
COMMENT ON COLUMN lanes.projection.target_table IS 'The table that a batch of this version may write to: schema and name, quoted where SQL needs it';
COMMENT ON COLUMN lanes.projection.defined_at IS 'When the version was defined';
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
    CONSTRAINT checkpoint_key PRIMARY KEY (projection, version, lane),
    CONSTRAINT checkpoint_projection FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE,
    CONSTRAINT checkpoint_log FOREIGN KEY (log_id) REFERENCES lanes.log,
    CONSTRAINT checkpoint_lane CHECK (lane >= 0),
    CONSTRAINT checkpoint_epoch CHECK (epoch >= 0),
    CONSTRAINT checkpoint_position CHECK ("position" >= 0),
    CONSTRAINT checkpoint_skipped_null_key CHECK (skipped_null_key >= 0),
    CONSTRAINT checkpoint_owner CHECK ((owner IS NULL) = (owner_process_id IS NULL)),
    CONSTRAINT checkpoint_stopped CHECK ((stopped_at IS NULL) = (stopped_reason IS NULL))
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
SELECT pg_catalog.pg_extension_config_dump('lanes.checkpoint', '');

-- What is in them can quote users' data (definitions, reasons), so reading the tables is the DBA's to grant.
GRANT USAGE ON SCHEMA lanes TO PUBLIC;
