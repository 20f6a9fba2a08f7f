\echo Use "CREATE EXTENSION pg_lanes" to load this file. \quit

-- Pure functions: which lane and which row shard a key belongs to, and what a lane's checkpoint is called.
--
-- They live in the schema of CREATE EXTENSION, so that lane_of('order-42', 8) works as it stands.
-- IMMUTABLE for ever: indexes and partitions may be built on the answers (HASH-1).
-- A cast to text never stands between caller and C: the same id gives the same answer in every type (HASH-2).

CREATE FUNCTION @extschema@.shard(key text, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_text_wrapper';
COMMENT ON FUNCTION @extschema@.shard(text, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key uuid, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.shard(uuid, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key bigint, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_bigint_wrapper';
COMMENT ON FUNCTION @extschema@.shard(bigint, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key int, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_int_wrapper';
COMMENT ON FUNCTION @extschema@.shard(int, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key smallint, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_smallint_wrapper';
COMMENT ON FUNCTION @extschema@.shard(smallint, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key bytea, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_bytea_wrapper';
COMMENT ON FUNCTION @extschema@.shard(bytea, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.lane_of(key text, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_text_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(text, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key uuid, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(uuid, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key bigint, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bigint_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bigint, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key int, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_int_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(int, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key smallint, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_smallint_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(smallint, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key bytea, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bytea_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bytea, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key text, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_text_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(text, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key uuid, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_uuid_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(uuid, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key bigint, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bigint_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bigint, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key int, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_int_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(int, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key smallint, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_smallint_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(smallint, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key bytea, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bytea_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bytea, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.checkpoint_name(projection text, lane int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'checkpoint_name_wrapper';
COMMENT ON FUNCTION @extschema@.checkpoint_name(text, int) IS
    'Name of a lane''s checkpoint, for example orders#p3 (orders~2#p3 in version 2)';

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
SELECT pg_catalog.pg_extension_config_dump('lanes.checkpoint', '');

-- What is in them can quote users' data (definitions, reasons), so reading the tables is the DBA's to grant.
GRANT USAGE ON SCHEMA lanes TO PUBLIC;

-- The advisory lock of a lane, and names of projections.

CREATE FUNCTION lanes.lock_key(projection text, lane int) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lock_key_wrapper';
COMMENT ON FUNCTION lanes.lock_key(text, int) IS
    'Key of a lane''s advisory lock: FNV-1a 64 of the checkpoint''s name';

CREATE FUNCTION lanes.take_lane_lock(projection text, lane int) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE COST 10 LANGUAGE c AS 'MODULE_PATHNAME', 'take_lane_lock_wrapper';
COMMENT ON FUNCTION lanes.take_lane_lock(text, int) IS
    'Takes a lane''s advisory lock for this session, and gives it back if the transaction is rolled back; false if any session holds it, this one included. A part of claim';
REVOKE ALL ON FUNCTION lanes.take_lane_lock(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.give_up_lane_lock(projection text, lane int) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE COST 10 LANGUAGE c AS 'MODULE_PATHNAME', 'give_up_lane_lock_wrapper';
COMMENT ON FUNCTION lanes.give_up_lane_lock(text, int) IS
    'Gives up a lane''s advisory lock when the transaction commits; false if this session does not hold it. A part of release';
REVOKE ALL ON FUNCTION lanes.give_up_lane_lock(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.find_projection(projection text) RETURNS lanes.projection
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection;
BEGIN
    IF find_projection.projection IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'projection must not be null';
    END IF;
    -- Refuses a malformed name (42602), so the parts below are a name and at most a number.
    PERFORM lanes.lock_key(find_projection.projection, 0);
    -- `orders` means the version in use: the first, as long as nothing makes another.
    SELECT p.* INTO defined
    FROM lanes.projection AS p
    WHERE p.name = pg_catalog.split_part(find_projection.projection, '~', 1)
      AND p.version = COALESCE(NULLIF(pg_catalog.split_part(find_projection.projection, '~', 2), ''), '1')::bigint;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('projection "%s" does not exist', find_projection.projection),
            HINT = 'Define it with lanes.define or ingestd apply; lanes.status lists the ones there are.';
    END IF;
    RETURN defined;
END
$$;
COMMENT ON FUNCTION lanes.find_projection(text) IS
    'The row of a projection, named as orders (the version in use) or orders~2; an error if there is none';

-- Definitions of projections.

CREATE FUNCTION lanes.check_definition(definition jsonb)
    RETURNS TABLE (name text, lanes int, slots int, target_table text, primary_key text[], bucketed boolean,
                   definition jsonb)
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 ROWS 4 LANGUAGE c AS 'MODULE_PATHNAME', 'check_definition_wrapper';
COMMENT ON FUNCTION lanes.check_definition(jsonb) IS
    'Checks a document of projections and lists what it defines; an error that names the place if it is not valid. Reads and changes nothing';

CREATE FUNCTION lanes.define_in(definition jsonb, log_id uuid, schema name)
    RETURNS TABLE (projection text, created boolean)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    log_ids    uuid[];
    this_log   uuid := define_in.log_id;
    checked    record;
    existing   lanes.projection;
    target     text;
    other      text;
    difference text;
BEGIN
    IF define_in.definition IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'definition must not be null';
    END IF;

    SELECT COALESCE(pg_catalog.array_agg(l.log_id ORDER BY l.log_id), '{}') INTO log_ids FROM lanes.log AS l;
    IF this_log IS NULL AND pg_catalog.cardinality(log_ids) = 1 THEN
        this_log := log_ids[1];
    ELSIF this_log IS NULL AND pg_catalog.cardinality(log_ids) = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'no log is registered that the projections could read',
            HINT = 'Start ingestd and use ingestd apply, which registers its log.';
    ELSIF this_log IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('%s logs are registered, and none was named', pg_catalog.cardinality(log_ids)),
            DETAIL = pg_catalog.format('The logs are %s.', pg_catalog.array_to_string(log_ids, ', ')),
            HINT = 'Pass the id of the log that the projections read as the second argument.';
    ELSIF this_log <> ALL (log_ids) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('log %s does not exist', this_log),
            HINT = 'The table lanes.log lists the logs there are.';
    END IF;

    -- In one order for everybody, so that two sessions with the same names wait for each other, never crosswise.
    FOR checked IN
        SELECT c.* FROM lanes.check_definition(define_in.definition) AS c ORDER BY c.name COLLATE "C"
    LOOP
        IF pg_catalog.strpos(checked.target_table, '.') > 0 THEN
            target := pg_catalog.format('%I.%I', pg_catalog.split_part(checked.target_table, '.', 1),
                pg_catalog.split_part(checked.target_table, '.', 2));
        -- A schema of the server's own is none for a user's table, nor is that of temporary tables.
        ELSIF pg_catalog.left(define_in.schema, 3) <> 'pg_' THEN
            target := pg_catalog.format('%I.%I', define_in.schema, checked.target_table);
        ELSE
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_schema_name',
                MESSAGE = pg_catalog.format('table "%s" of projection "%s" has no schema, and search_path names none',
                    checked.target_table, checked.name),
                HINT = 'Write target.table as schema.table, or set search_path.';
        END IF;
        SELECT p.name INTO other FROM lanes.projection AS p WHERE p.target_table = target AND p.name <> checked.name;
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_in_use',
                MESSAGE = pg_catalog.format('table %s of projection "%s" is already that of projection "%s"',
                    target, checked.name, other),
                HINT = 'Give each projection a table of its own.';
        END IF;

        -- Another session's uncommitted row of this name is waited for.
        INSERT INTO lanes.projection (name, version, log_id, definition, lanes, slots, target_table)
        VALUES (checked.name, 1, this_log, checked.definition, checked.lanes, checked.slots, target)
        ON CONFLICT ON CONSTRAINT projection_key DO NOTHING;

        IF FOUND THEN
            INSERT INTO lanes.checkpoint (projection, version, lane, log_id)
            SELECT checked.name, 1, n, this_log FROM pg_catalog.generate_series(0, checked.lanes - 1) AS n;
            define_in.created := true;
        ELSE
            SELECT p.* INTO STRICT existing FROM lanes.projection AS p WHERE p.name = checked.name AND p.version = 1;
            SELECT pg_catalog.string_agg(COALESCE(old.key, new.key), ', ' ORDER BY COALESCE(old.key, new.key) COLLATE "C")
            INTO difference
            FROM pg_catalog.jsonb_each(existing.definition) AS old
            FULL JOIN pg_catalog.jsonb_each(checked.definition) AS new ON new.key = old.key
            WHERE old.value IS DISTINCT FROM new.value;
            IF difference IS NOT NULL THEN
                difference := pg_catalog.format('These parts differ: %s.', difference);
            ELSIF existing.log_id <> this_log THEN
                difference := pg_catalog.format('It reads log %s, not %s.', existing.log_id, this_log);
            ELSIF existing.target_table <> target THEN
                difference := pg_catalog.format('Its table is %s, not %s.', existing.target_table, target);
            END IF;
            IF difference IS NOT NULL THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = pg_catalog.format('projection "%s" is already defined differently', checked.name),
                    DETAIL = difference,
                    HINT = 'Define it under another name; this version of pg_lanes does not change a definition in place.';
            END IF;
            define_in.created := false;
        END IF;
        define_in.projection := checked.name;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION lanes.define_in(jsonb, uuid, name) IS
    'As lanes.define, with the schema of tables that the document names without one';
REVOKE ALL ON FUNCTION lanes.define_in(jsonb, uuid, name) FROM PUBLIC;

-- Without SET search_path, since the caller's tells the schema; a body of this form is parsed once, here, so that no
-- search_path can change what it calls.
CREATE FUNCTION lanes.define(definition jsonb, log_id uuid DEFAULT NULL)
    RETURNS TABLE (projection text, created boolean)
    VOLATILE PARALLEL UNSAFE LANGUAGE sql SECURITY INVOKER
BEGIN ATOMIC
    SELECT d.projection, d.created
    FROM lanes.define_in(define.definition, define.log_id, pg_catalog.current_schema()) AS d;
END;
COMMENT ON FUNCTION lanes.define(jsonb, uuid) IS
    'Defines the projections of a document and binds them to one log (NULL: the only one there is): all of them or none. A table without schema is in the first schema of search_path. The same definition again changes nothing';
REVOKE ALL ON FUNCTION lanes.define(jsonb, uuid) FROM PUBLIC;

-- Owning a lane: claim, release, and the batch.
--
-- LANE-1 rests on two things alone: every batch first locks the lane's row, then checks the epoch, which every claim
-- has raised under that same lock. LANE-2: begin_batch opens and commit_batch ends one transaction, in which the
-- worker writes its rows. The functions are not STRICT: a null argument must be an error, not an answer without rows.

CREATE FUNCTION lanes.lock_lane(projection text, lane int, epoch bigint) RETURNS lanes.checkpoint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(lock_lane.projection);
    locked lanes.checkpoint;
BEGIN
    SELECT c.* INTO locked
    FROM lanes.checkpoint AS c
    WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = lock_lane.lane
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('lane %s of projection "%s" does not exist',
                COALESCE(lock_lane.lane::text, 'null'), lock_lane.projection),
            HINT = pg_catalog.format('It has %s lanes, numbered from 0.', defined.lanes);
    END IF;
    IF locked.epoch IS DISTINCT FROM lock_lane.epoch THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = pg_catalog.format('lane %s of projection "%s" is in epoch %s, not %s',
                locked.lane, lock_lane.projection, locked.epoch, COALESCE(lock_lane.epoch::text, 'null')),
            DETAIL = CASE WHEN locked.owner IS NOT NULL
                THEN pg_catalog.format('Worker "%s" claimed it last.', locked.owner)
                ELSE 'It was released, or never claimed.' END,
            HINT = 'Drop the batch, and claim a lane again.';
    END IF;
    RETURN locked;
END
$$;
COMMENT ON FUNCTION lanes.lock_lane(text, int, bigint) IS
    'Locks the row of a lane and checks the epoch: the fence that begin_batch, commit_batch and stop_lane share';
REVOKE ALL ON FUNCTION lanes.lock_lane(text, int, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.session_started_at() RETURNS timestamptz
    STABLE PARALLEL RESTRICTED COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'session_started_at_wrapper';
COMMENT ON FUNCTION lanes.session_started_at() IS
    'When this session began: tells it from an earlier one with the same process id';

CREATE FUNCTION lanes.claim(projection text, worker text, log_id uuid DEFAULT NULL)
    RETURNS TABLE (lane int, epoch bigint, "position" bigint)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined     lanes.projection := lanes.find_projection(claim.projection);
    candidate int;
BEGIN
    IF COALESCE(claim.worker, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'worker must have a name',
            HINT = 'Pass a name that tells people which process holds the lane, for example host and process id.';
    END IF;
    IF claim.log_id IS DISTINCT FROM defined.log_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = CASE WHEN claim.log_id IS NULL
                THEN pg_catalog.format('projection "%s" reads log %s, and the worker named none',
                    claim.projection, defined.log_id)
                ELSE pg_catalog.format('projection "%s" reads log %s, not %s',
                    claim.projection, defined.log_id, claim.log_id) END,
            DETAIL = 'Only the daemon whose log it is can read its events.',
            HINT = 'Let the ingestd that holds this log work on the projection; it passes the id of its log.';
    END IF;

    FOR candidate IN
        SELECT c.lane
        FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version
        -- The last sign of life: the lane longest without an owner comes first.
        ORDER BY GREATEST(defined.defined_at, c.claimed_at, c.moved_at, c.released_at), c.lane
    LOOP
        CONTINUE WHEN NOT lanes.take_lane_lock(claim.projection, candidate);
        -- Waits for a batch that is still running under an older epoch.
        UPDATE lanes.checkpoint AS c
        SET epoch = c.epoch + 1,
            owner = claim.worker,
            owner_process_id = pg_catalog.pg_backend_pid(),
            owner_application = NULLIF(pg_catalog.current_setting('application_name'), ''),
            owner_address = pg_catalog.inet_client_addr(),
            owner_started_at = lanes.session_started_at(),
            claimed_at = pg_catalog.clock_timestamp(),
            released_at = NULL,
            stopped_at = NULL,
            stopped_reason = NULL
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = candidate
        RETURNING c.lane, c.epoch, c."position" INTO STRICT lane, epoch, "position";
        RETURN NEXT;
        RETURN;
    END LOOP;
END
$$;
COMMENT ON FUNCTION lanes.claim(text, text, uuid) IS
    'Takes a free lane of a projection for this session, the one longest without an owner first; no row if none is free. The session that claims must be the one that applies the batches';
REVOKE ALL ON FUNCTION lanes.claim(text, text, uuid) FROM PUBLIC;

CREATE FUNCTION lanes.release(projection text, lane int, epoch bigint) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(release.projection);
BEGIN
    UPDATE lanes.checkpoint AS c
    SET owner = NULL,
        owner_process_id = NULL,
        owner_application = NULL,
        owner_address = NULL,
        owner_started_at = NULL,
        released_at = pg_catalog.clock_timestamp()
    WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = release.lane
      AND c.epoch = release.epoch
      AND c.owner_process_id = pg_catalog.pg_backend_pid()
      -- Process ids come round again: the session that claimed is meant.
      AND c.owner_started_at = lanes.session_started_at();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM lanes.give_up_lane_lock(release.projection, release.lane);
    RETURN true;
END
$$;
COMMENT ON FUNCTION lanes.release(text, int, bigint) IS
    'Gives a lane up when the transaction commits; false, and nothing changed, if this session does not own it in that epoch';
REVOKE ALL ON FUNCTION lanes.release(text, int, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.begin_batch(projection text, lane int, epoch bigint, log_id uuid)
    RETURNS TABLE ("position" bigint, target_table text)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- How long a worker may leave the transaction idle, and with it the lane locked.
    longest_idle CONSTANT text := '60s';
    idle    interval;
    defined   lanes.projection;
    locked  lanes.checkpoint;
    running text := NULLIF(pg_catalog.current_setting('pg_lanes.batch', true), '');
    batch   text;
BEGIN
    -- Only there does each statement after the lock see what the lock's last holder committed.
    IF pg_catalog.current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('cannot begin a batch in isolation level %s',
                pg_catalog.current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;

    locked := lanes.lock_lane(begin_batch.projection, begin_batch.lane, begin_batch.epoch);
    IF locked.log_id IS DISTINCT FROM begin_batch.log_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('lane %s of projection "%s" stands in log %s, not in %s',
                locked.lane, begin_batch.projection, locked.log_id, COALESCE(begin_batch.log_id::text, 'null')),
            HINT = 'A position means something in its own log only: send events of that log.';
    END IF;
    batch := pg_catalog.format('%s in epoch %s',
        @extschema@.checkpoint_name(begin_batch.projection, locked.lane), locked.epoch);
    IF running <> batch THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('the batch of %s is not committed', running),
            HINT = 'Call lanes.commit_batch first, or roll back.';
    END IF;

    idle := pg_catalog.current_setting('idle_in_transaction_session_timeout');
    IF idle = '0' OR idle > longest_idle::interval THEN
        PERFORM pg_catalog.set_config('idle_in_transaction_session_timeout', longest_idle, true);
    END IF;
    PERFORM pg_catalog.set_config('pg_lanes.batch', batch, true);

    defined := lanes.find_projection(begin_batch.projection);
    begin_batch."position" := locked."position";
    begin_batch.target_table := defined.target_table;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION lanes.begin_batch(text, int, bigint, uuid) IS
    'First statement of a batch''s transaction: locks the lane, checks epoch and log, and returns the checkpoint''s position and the only table that the batch may write to';
REVOKE ALL ON FUNCTION lanes.begin_batch(text, int, bigint, uuid) FROM PUBLIC;

CREATE FUNCTION lanes.commit_batch(projection text, lane int, epoch bigint, "position" bigint,
                                   skipped_null_key bigint DEFAULT 0) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(commit_batch.projection, commit_batch.lane, commit_batch.epoch);
    batch  text := pg_catalog.format('%s in epoch %s',
        @extschema@.checkpoint_name(commit_batch.projection, locked.lane), locked.epoch);
BEGIN
    IF pg_catalog.current_setting('pg_lanes.batch', true) IS DISTINCT FROM batch THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('no batch of %s was begun in this transaction', batch),
            HINT = 'Call lanes.begin_batch first, write the rows, then call lanes.commit_batch in the same transaction.';
    END IF;
    IF commit_batch."position" IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'position must not be null';
    ELSIF commit_batch."position" < locked."position" THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('position %s is below the checkpoint of lane %s of projection "%s", which is %s',
                commit_batch."position", locked.lane, commit_batch.projection, locked."position"),
            HINT = 'Events up to the checkpoint are applied: drop them from the batch.';
    END IF;
    IF commit_batch.skipped_null_key IS NULL OR commit_batch.skipped_null_key < 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('skipped_null_key must be at least 0, not %s',
                COALESCE(commit_batch.skipped_null_key::text, 'null')),
            HINT = 'Pass how many events of this batch had no lane key or no row key.';
    END IF;

    UPDATE lanes.checkpoint AS c
    SET "position" = commit_batch."position",
        skipped_null_key = c.skipped_null_key + commit_batch.skipped_null_key,
        moved_at = pg_catalog.clock_timestamp(),
        stopped_at = NULL,
        stopped_reason = NULL
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
    PERFORM pg_catalog.set_config('pg_lanes.batch', '', true);
END
$$;
COMMENT ON FUNCTION lanes.commit_batch(text, int, bigint, bigint, bigint) IS
    'Last statement of a batch''s transaction before COMMIT: moves the checkpoint to position and adds to skipped_null_key';
REVOKE ALL ON FUNCTION lanes.commit_batch(text, int, bigint, bigint, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.stop_lane(projection text, lane int, epoch bigint, reason text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(stop_lane.projection, stop_lane.lane, stop_lane.epoch);
BEGIN
    IF COALESCE(stop_lane.reason, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'reason must not be empty',
            HINT = 'Say why the lane cannot go on: it is what people see in lanes.status.';
    END IF;
    UPDATE lanes.checkpoint AS c
    SET stopped_at = pg_catalog.clock_timestamp(), stopped_reason = stop_lane.reason
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
END
$$;
COMMENT ON FUNCTION lanes.stop_lane(text, int, bigint, text) IS
    'Records why a lane''s owner cannot go on, for lanes.status; the next batch or claim clears it';
REVOKE ALL ON FUNCTION lanes.stop_lane(text, int, bigint, text) FROM PUBLIC;

-- The view lanes.status.

CREATE VIEW lanes.status AS
WITH held AS MATERIALIZED (
    -- Advisory locks on one bigint key in this database: its high half, its low half, and 1 for "one key".
    SELECT l.pid, l.classid, l.objid
    FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
), lane AS (
    SELECT p.defined_at, c.*, p.name || '~' || p.version::text AS versioned_name
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
    pg_catalog.clock_timestamp() - l.reported_at AS log_report_age
FROM owned AS s
JOIN lanes.log AS l ON l.log_id = s.log_id
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

-- A reason can quote a row's values, so the view is for those who monitor the server, not for everybody.
GRANT SELECT ON lanes.status TO pg_monitor;

-- The view over a table whose counters are spread over several rows a key (row shards, buckets).

CREATE FUNCTION lanes.create_sum_view(view text, source regclass, group_by text[], sums text[] DEFAULT '{}',
                                      mins text[] DEFAULT '{}', maxs text[] DEFAULT '{}', counts text[] DEFAULT '{}')
    RETURNS regclass
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts       text[];
    schema_name text;
    source_name text;
    source_kind "char";
    item        record;
    base_type   oid;
    used        text[] := '{}';
    columns     text[] := '{}';
    keys        text[] := '{}';
BEGIN
    IF create_sum_view.view IS NULL OR create_sum_view.source IS NULL OR create_sum_view.group_by IS NULL
        OR create_sum_view.sums IS NULL OR create_sum_view.mins IS NULL OR create_sum_view.maxs IS NULL
        OR create_sum_view.counts IS NULL
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'arguments of lanes.create_sum_view must not be null',
            HINT = 'Pass an empty array where there are no columns.';
    END IF;

    SELECT n.nspname, c.relname, c.relkind INTO schema_name, source_name, source_kind
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = create_sum_view.source;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_table',
            MESSAGE = pg_catalog.format('relation with OID %s does not exist', create_sum_view.source::oid);
    ELSIF source_kind NOT IN ('r', 'p', 'v', 'm', 'f') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'wrong_object_type',
            MESSAGE = pg_catalog.format('"%s" is not a table or view', source_name);
    END IF;

    parts := pg_catalog.parse_ident(create_sum_view.view);
    IF pg_catalog.cardinality(parts) > 2 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_name',
            MESSAGE = pg_catalog.format('"%s" is not the name of a view', create_sum_view.view),
            HINT = 'Pass name or schema.name.';
    END IF;

    FOR item IN
        SELECT 'key' AS kind, k.name FROM pg_catalog.unnest(create_sum_view.group_by) AS k (name)
        UNION ALL SELECT 'sum', k.name FROM pg_catalog.unnest(create_sum_view.sums) AS k (name)
        UNION ALL SELECT 'min', k.name FROM pg_catalog.unnest(create_sum_view.mins) AS k (name)
        UNION ALL SELECT 'max', k.name FROM pg_catalog.unnest(create_sum_view.maxs) AS k (name)
        UNION ALL SELECT 'count', k.name FROM pg_catalog.unnest(create_sum_view.counts) AS k (name)
    LOOP
        -- A view column has its source's name, so one column gives one view column.
        IF item.name = ANY (used) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = pg_catalog.format('column "%s" is named more than once', item.name),
                HINT = 'Each column of the source gives at most one column of the view.';
        END IF;
        used := used || item.name;

        SELECT a.atttypid INTO base_type
        FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = create_sum_view.source AND a.attname = item.name AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_column',
                MESSAGE = pg_catalog.format('column "%s" of relation "%s" does not exist',
                    COALESCE(item.name, 'null'), source_name);
        END IF;
        WHILE (SELECT t.typtype = 'd' FROM pg_catalog.pg_type AS t WHERE t.oid = base_type) LOOP
            SELECT t.typbasetype INTO base_type FROM pg_catalog.pg_type AS t WHERE t.oid = base_type;
        END LOOP;

        IF item.kind = 'key' THEN
            keys := keys || pg_catalog.format('s.%I', item.name);
            columns := columns || pg_catalog.format('s.%I', item.name);
        ELSIF item.kind <> 'sum' THEN
            columns := columns || pg_catalog.format('pg_catalog.%1$s(s.%2$I) AS %2$I', item.kind, item.name);
        ELSIF base_type IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN
            -- The sum of bigint is numeric and cannot overflow; that of smaller integers would be a bigint that wraps
            -- round without an error.
            columns := columns || pg_catalog.format('pg_catalog.sum(s.%1$I::pg_catalog.int8) AS %1$I', item.name);
        ELSIF base_type IN ('numeric'::regtype, 'float4'::regtype, 'float8'::regtype) THEN
            columns := columns || pg_catalog.format('pg_catalog.sum(s.%1$I) AS %1$I', item.name);
        ELSE
            RAISE EXCEPTION USING
                ERRCODE = 'datatype_mismatch',
                MESSAGE = pg_catalog.format('column "%s" of type %s cannot be summed', item.name,
                    pg_catalog.format_type(base_type, NULL)),
                HINT = 'Sum columns of an integer type, numeric, real or double precision; others can be counted.';
        END IF;
    END LOOP;

    IF pg_catalog.cardinality(columns) = pg_catalog.cardinality(keys) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('view "%s" would have nothing to aggregate', create_sum_view.view),
            HINT = 'Name at least one column in sums, mins, maxs or counts.';
    END IF;

    IF pg_catalog.cardinality(parts) = 2 THEN
        schema_name := parts[1];
    END IF;
    -- With the rights of who reads the view: it must not open the table to anybody.
    EXECUTE pg_catalog.format('CREATE VIEW %I.%I WITH (security_invoker = true) AS SELECT %s FROM %s AS s%s',
        schema_name, parts[pg_catalog.cardinality(parts)], pg_catalog.array_to_string(columns, ', '),
        create_sum_view.source,
        CASE WHEN keys = '{}' THEN '' ELSE ' GROUP BY ' || pg_catalog.array_to_string(keys, ', ') END);
    EXECUTE pg_catalog.format('COMMENT ON VIEW %I.%I IS %L',
        schema_name, parts[pg_catalog.cardinality(parts)],
        pg_catalog.format('Totals of %s over its row shards, made by lanes.create_sum_view', create_sum_view.source));
    RETURN pg_catalog.format('%I.%I', schema_name, parts[pg_catalog.cardinality(parts)])::regclass;
END
$$;
COMMENT ON FUNCTION lanes.create_sum_view(text, regclass, text[], text[], text[], text[], text[]) IS
    'Creates a view that adds up the rows of source with the same group_by columns; a name without schema goes into the schema of source. Sums of integers are numeric';
REVOKE ALL ON FUNCTION lanes.create_sum_view(text, regclass, text[], text[], text[], text[], text[]) FROM PUBLIC;
