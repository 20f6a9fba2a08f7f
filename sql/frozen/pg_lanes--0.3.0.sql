\echo Use "CREATE EXTENSION pg_lanes" to load this file. \quit

-- Names and operators in views, checks and defaults are looked up when this script runs. CREATE EXTENSION looks in the
-- schema that the user chose as well, where others may have put their own; the script names all that is not built in.
SET LOCAL search_path TO pg_catalog, pg_temp;

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

-- Write sharding: one hot key of any store written as n keys (STATUS#pending#0 to #9), and read as all of them.
--
-- In the schema of CREATE EXTENSION, like the hashing they rest on. shard_key is IMMUTABLE for ever (HASH-1).

CREATE FUNCTION @extschema@.shard_key(key text, id text, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_text_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, text, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id uuid, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, uuid, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id bigint, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_bigint_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, bigint, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id int, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_int_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, int, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id smallint, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_smallint_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, smallint, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id bytea, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_bytea_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, bytea, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.random_shard_key(key text, n int) RETURNS text
    VOLATILE STRICT PARALLEL RESTRICTED COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'random_shard_key_wrapper';
COMMENT ON FUNCTION @extschema@.random_shard_key(text, int) IS
    'One of the n sharded keys of key, at random: for items that are never looked up by their id';

CREATE FUNCTION @extschema@.shard_keys(key text, n int) RETURNS text[]
    IMMUTABLE STRICT PARALLEL SAFE COST 10 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_keys_wrapper';
COMMENT ON FUNCTION @extschema@.shard_keys(text, int) IS
    'All n sharded keys of key, for the read that fans out: WHERE k = ANY (shard_keys(''STATUS#pending'', 10))';

CREATE FUNCTION @extschema@.shard_of_key(sharded_key text) RETURNS TABLE (key text, shard int)
    IMMUTABLE STRICT PARALLEL SAFE COST 1 ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_of_key_wrapper';
COMMENT ON FUNCTION @extschema@.shard_of_key(text) IS
    'Takes a sharded key apart: what stands before its last #, and the shard after it';

CREATE FUNCTION @extschema@.suggest_shards(writes_per_second bigint, per_shard_limit bigint DEFAULT 1000,
                                           headroom numeric DEFAULT 2.5)
    RETURNS TABLE (shards int, power_of_two int, counter_shards_from int, counter_shards_to int, reads_per_query int)
    IMMUTABLE STRICT PARALLEL SAFE COST 10 ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'suggest_shards_wrapper';
COMMENT ON FUNCTION @extschema@.suggest_shards(bigint, bigint, numeric) IS
    'How many shards a rate needs: writes_per_second / per_shard_limit * headroom, rounded up; the next power of two; how many row shards a counter in Postgres needs (null: one row is enough); and how many keys each read then asks for';

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
            WHERE old.value IS DISTINCT FROM new.value
              -- How a projection is worked on changes no row, so it may change in place.
              AND COALESCE(old.key, new.key) <> ALL ('{type,processing,checkpointing,retry,priority,indexes}');
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
                    HINT = 'The rows would have to be built anew: define it under another name. Only type, processing, checkpointing, retry, priority and indexes change in place.';
            END IF;
            UPDATE lanes.projection AS p SET definition = checked.definition
            WHERE p.name = existing.name AND p.version = existing.version AND p.definition <> checked.definition;
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
        stopped_reason = NULL,
        failed_position = NULL
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

-- Parked keys: what becomes of an event that cannot be applied, so that nothing is dropped and nobody else waits.
--
-- LANE-3: while a key has a row in parked_key, every later event of it is put behind it in parked_event, and applied in
-- order. LANE-4: an event is applied, or has a row in parked_event, or has a row in skipped_event. All of it changes
-- under the lock of the lane's row. A key belongs to its slot, so it follows every move of slots between lanes.

CREATE TABLE lanes.parked_key (
    projection   text COLLATE "C" NOT NULL,
    version      int         NOT NULL,
    slot         int         NOT NULL,
    key          text COLLATE "C" NOT NULL,
    key_hash     bytea       NOT NULL,
    attempts     int         NOT NULL DEFAULT 1,
    next_try_at  timestamptz,
    sqlstate     text        NOT NULL,
    error        text        NOT NULL,
    parked_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- By a hash: a key may be longer than an index holds.
    CONSTRAINT parked_key_key PRIMARY KEY (projection, version, slot, key_hash),
    CONSTRAINT parked_key_projection FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE,
    CONSTRAINT parked_key_slot CHECK (slot >= 0),
    CONSTRAINT parked_key_attempts CHECK (attempts >= 0)
);
COMMENT ON TABLE lanes.parked_key IS 'Keys whose first waiting event could not be applied; later events of them wait behind it';
COMMENT ON COLUMN lanes.parked_key.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.parked_key.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.parked_key.slot IS 'The key''s slot; its lane retries the key';
COMMENT ON COLUMN lanes.parked_key.key IS 'The lane key';
COMMENT ON COLUMN lanes.parked_key.key_hash IS 'SHA-256 of the lane key in UTF-8';
COMMENT ON COLUMN lanes.parked_key.attempts IS 'How often its first event has failed since it was parked or retry was asked for';
COMMENT ON COLUMN lanes.parked_key.next_try_at IS 'When it is tried again; null: when lanes.retry asks for it';
COMMENT ON COLUMN lanes.parked_key.sqlstate IS 'SQLSTATE of the last failure; 22000 where a value did not fit its column';
COMMENT ON COLUMN lanes.parked_key.error IS 'The last failure in words';
COMMENT ON COLUMN lanes.parked_key.parked_at IS 'When the key was parked';
SELECT pg_catalog.pg_extension_config_dump('lanes.parked_key', '');

CREATE TABLE lanes.parked_event (
    projection   text COLLATE "C" NOT NULL,
    version      int         NOT NULL,
    slot         int         NOT NULL,
    key_hash     bytea       NOT NULL,
    "position"   bigint      NOT NULL,
    event_type   text        NOT NULL,
    event_key    text        NOT NULL,
    event_ts     bigint      NOT NULL,
    payload      text        NOT NULL,
    parked_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT parked_event_key PRIMARY KEY (projection, version, slot, key_hash, "position"),
    CONSTRAINT parked_event_position CHECK ("position" > 0)
);
COMMENT ON TABLE lanes.parked_event IS 'The events of parked keys, in order: the first is the one that failed';
COMMENT ON COLUMN lanes.parked_event.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.parked_event.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.parked_event.slot IS 'Slot of the lane key';
COMMENT ON COLUMN lanes.parked_event.key_hash IS 'SHA-256 of the lane key in UTF-8';
COMMENT ON COLUMN lanes.parked_event."position" IS 'The event''s place in the log';
COMMENT ON COLUMN lanes.parked_event.event_type IS 'The event''s type';
COMMENT ON COLUMN lanes.parked_event.event_key IS 'The event''s key';
COMMENT ON COLUMN lanes.parked_event.event_ts IS 'The event''s time in milliseconds since 1970 UTC';
COMMENT ON COLUMN lanes.parked_event.payload IS 'The event''s payload, byte for byte';
COMMENT ON COLUMN lanes.parked_event.parked_at IS 'When the event was put here';
SELECT pg_catalog.pg_extension_config_dump('lanes.parked_event', '');
CREATE INDEX parked_event_position_index ON lanes.parked_event (projection, version, "position");

CREATE TABLE lanes.skipped_event (
    projection   text COLLATE "C" NOT NULL,
    version      int         NOT NULL,
    "position"   bigint      NOT NULL,
    key          text COLLATE "C",
    event_type   text,
    event_key    text,
    event_ts     bigint,
    payload      text,
    sqlstate     text,
    error        text,
    reason       text        NOT NULL,
    skipped_by   text        NOT NULL DEFAULT session_user,
    skipped_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT skipped_event_key PRIMARY KEY (projection, version, "position"),
    CONSTRAINT skipped_event_projection FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE,
    CONSTRAINT skipped_event_position CHECK ("position" > 0)
);
COMMENT ON TABLE lanes.skipped_event IS 'Events that are never applied, and who said so: the audit of lanes.skip and of on_error: skip';
COMMENT ON COLUMN lanes.skipped_event.projection IS 'Name of the projection';
COMMENT ON COLUMN lanes.skipped_event.version IS 'Version of the projection';
COMMENT ON COLUMN lanes.skipped_event."position" IS 'The event''s place in the log';
COMMENT ON COLUMN lanes.skipped_event.key IS 'Its lane key; null until the lane of an event that was skipped in advance has met it';
COMMENT ON COLUMN lanes.skipped_event.event_type IS 'The event''s type';
COMMENT ON COLUMN lanes.skipped_event.event_key IS 'The event''s key';
COMMENT ON COLUMN lanes.skipped_event.event_ts IS 'The event''s time in milliseconds since 1970 UTC';
COMMENT ON COLUMN lanes.skipped_event.payload IS 'The event''s payload, byte for byte';
COMMENT ON COLUMN lanes.skipped_event.sqlstate IS 'SQLSTATE of its last failure';
COMMENT ON COLUMN lanes.skipped_event.error IS 'Its last failure in words';
COMMENT ON COLUMN lanes.skipped_event.reason IS 'Why it is skipped';
COMMENT ON COLUMN lanes.skipped_event.skipped_by IS 'The user who said so; the worker''s with on_error: skip';
COMMENT ON COLUMN lanes.skipped_event.skipped_at IS 'When';
SELECT pg_catalog.pg_extension_config_dump('lanes.skipped_event', '');

CREATE FUNCTION lanes.parked_keys(projection text, lane int)
    RETURNS TABLE (slot int, key text, next_try_ms bigint)
    VOLATILE PARALLEL UNSAFE ROWS 10 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(parked_keys.projection);
BEGIN
    RETURN QUERY
    SELECT k.slot, k.key,
        -- In time of this database, for clocks differ. (GREATEST passes over nulls.)
        CASE WHEN k.next_try_at IS NOT NULL THEN GREATEST(pg_catalog.ceil(
            pg_catalog.date_part('epoch', k.next_try_at - pg_catalog.clock_timestamp()) * 1000), 0)::bigint END
    FROM lanes.parked_key AS k
    WHERE k.projection = defined.name AND k.version = defined.version AND k.slot % defined.lanes = parked_keys.lane
    ORDER BY k.next_try_at NULLS LAST, k.slot, k.key;
END
$$;
COMMENT ON FUNCTION lanes.parked_keys(text, int) IS
    'The parked keys of a lane''s slots, and in how many milliseconds each is tried again (null: when it is asked for). After begin_batch in its transaction nobody else changes them';
REVOKE ALL ON FUNCTION lanes.parked_keys(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.park(projection text, lane int, epoch bigint, slots int[], keys text[], positions bigint[],
                           types text[], event_keys text[], times bigint[], payloads text[], sqlstates text[],
                           errors text[], retry_after_ms bigint) RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(park.projection, park.lane, park.epoch);
    parked bigint;
BEGIN
    -- The first event of a key names the failure; those behind it come without one.
    INSERT INTO lanes.parked_key AS k (projection, version, slot, key, key_hash, next_try_at, sqlstate, error)
    SELECT locked.projection, locked.version, e.slot, e.key, pg_catalog.sha256(pg_catalog.convert_to(e.key, 'UTF8')),
        pg_catalog.clock_timestamp() + park.retry_after_ms * interval '1 millisecond', e.sqlstate, e.error
    FROM unnest(park.slots, park.keys, park.sqlstates, park.errors) AS e (slot, key, sqlstate, error)
    WHERE e.error IS NOT NULL
    ORDER BY e.slot, e.key
    ON CONFLICT ON CONSTRAINT parked_key_key DO NOTHING;
    INSERT INTO lanes.parked_event (projection, version, slot, key_hash, "position", event_type, event_key, event_ts, payload)
    SELECT locked.projection, locked.version, e.slot, pg_catalog.sha256(pg_catalog.convert_to(e.key, 'UTF8')),
        e."position", e.event_type, e.event_key, e.event_ts, e.payload
    FROM unnest(park.slots, park.keys, park.positions, park.types, park.event_keys, park.times, park.payloads)
        AS e (slot, key, "position", event_type, event_key, event_ts, payload);
    SELECT pg_catalog.count(*) INTO parked
    FROM lanes.parked_event AS p
    WHERE p.projection = locked.projection AND p.version = locked.version;
    RETURN parked;
END
$$;
COMMENT ON FUNCTION lanes.park(text, int, bigint, int[], text[], bigint[], text[], text[], bigint[], text[], text[], text[], bigint) IS
    'Puts events aside in the transaction of a batch: one with an error parks its key, the others wait behind it. Returns how many events of the projection wait';
REVOKE ALL ON FUNCTION lanes.park(text, int, bigint, int[], text[], bigint[], text[], text[], bigint[], text[], text[], text[], bigint) FROM PUBLIC;

CREATE FUNCTION lanes.parked_events(projection text, slot int, key text, maximum int)
    RETURNS TABLE ("position" bigint, event_type text, event_key text, event_ts bigint, payload text, attempts int)
    VOLATILE PARALLEL UNSAFE ROWS 100 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(parked_events.projection);
BEGIN
    RETURN QUERY
    SELECT p."position", p.event_type, p.event_key, p.event_ts, p.payload, k.attempts
    FROM lanes.parked_key AS k
    JOIN lanes.parked_event AS p USING (projection, version, slot, key_hash)
    WHERE k.projection = defined.name AND k.version = defined.version AND k.slot = parked_events.slot
      AND k.key_hash = pg_catalog.sha256(pg_catalog.convert_to(parked_events.key, 'UTF8'))
    ORDER BY p."position"
    LIMIT parked_events.maximum;
END
$$;
COMMENT ON FUNCTION lanes.parked_events(text, int, text, int) IS
    'The first events that wait of a parked key, in order, and how often the first has failed';
REVOKE ALL ON FUNCTION lanes.parked_events(text, int, text, int) FROM PUBLIC;

CREATE FUNCTION lanes.unpark(projection text, lane int, epoch bigint, slot int, key text, applied_to bigint,
                             sqlstate text DEFAULT NULL, error text DEFAULT NULL, retry_after_ms bigint DEFAULT NULL)
    RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(unpark.projection, unpark.lane, unpark.epoch);
    hash   bytea := pg_catalog.sha256(pg_catalog.convert_to(unpark.key, 'UTF8'));
    moved  bigint;
BEGIN
    DELETE FROM lanes.parked_event AS p
    WHERE p.projection = locked.projection AND p.version = locked.version AND p.slot = unpark.slot
      AND p.key_hash = hash AND p."position" <= unpark.applied_to;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF NOT EXISTS (
        SELECT FROM lanes.parked_event AS p
        WHERE p.projection = locked.projection AND p.version = locked.version AND p.slot = unpark.slot
          AND p.key_hash = hash)
    THEN
        DELETE FROM lanes.parked_key AS k
        WHERE k.projection = locked.projection AND k.version = locked.version AND k.slot = unpark.slot
          AND k.key_hash = hash;
        RETURN true;
    END IF;
    UPDATE lanes.parked_key AS k
    SET attempts = CASE WHEN unpark.error IS NULL THEN 0 WHEN moved > 0 THEN 1 ELSE k.attempts + 1 END,
        next_try_at = CASE WHEN unpark.error IS NULL THEN pg_catalog.clock_timestamp()
            ELSE pg_catalog.clock_timestamp() + unpark.retry_after_ms * interval '1 millisecond' END,
        sqlstate = COALESCE(unpark.sqlstate, k.sqlstate),
        error = COALESCE(unpark.error, k.error)
    WHERE k.projection = locked.projection AND k.version = locked.version AND k.slot = unpark.slot
      AND k.key_hash = hash;
    RETURN false;
END
$$;
COMMENT ON FUNCTION lanes.unpark(text, int, bigint, int, text, bigint, text, text, bigint) IS
    'After a retry, in its transaction: takes out the events of a parked key that were applied, and frees the key if that was all (true); else notes the failure of the next one and when it is tried again (retry_after_ms null: when asked for)';
REVOKE ALL ON FUNCTION lanes.unpark(text, int, bigint, int, text, bigint, text, text, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.skip_failed(projection text, lane int, epoch bigint, keys text[], positions bigint[], types text[],
                                  event_keys text[], times bigint[], payloads text[], sqlstates text[], errors text[])
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(skip_failed.projection, skip_failed.lane, skip_failed.epoch);
BEGIN
    INSERT INTO lanes.skipped_event AS s
        (projection, version, "position", key, event_type, event_key, event_ts, payload, sqlstate, error, reason)
    SELECT locked.projection, locked.version, e."position", e.key, e.event_type, e.event_key, e.event_ts, e.payload,
        e.sqlstate, e.error, 'on_error: skip'
    FROM unnest(skip_failed.keys, skip_failed.positions, skip_failed.types, skip_failed.event_keys,
        skip_failed.times, skip_failed.payloads, skip_failed.sqlstates, skip_failed.errors)
        AS e (key, "position", event_type, event_key, event_ts, payload, sqlstate, error)
    ON CONFLICT ON CONSTRAINT skipped_event_key DO UPDATE
    -- Somebody had asked for it in advance: the reason is theirs, the event is known now.
    SET key = EXCLUDED.key, event_type = EXCLUDED.event_type, event_key = EXCLUDED.event_key,
        event_ts = EXCLUDED.event_ts, payload = EXCLUDED.payload,
        sqlstate = EXCLUDED.sqlstate, error = EXCLUDED.error;
END
$$;
COMMENT ON FUNCTION lanes.skip_failed(text, int, bigint, text[], bigint[], text[], text[], bigint[], text[], text[], text[]) IS
    'Sets events aside for good in the transaction of a batch, for on_error: skip and for events whose skipping was asked for in advance';
REVOKE ALL ON FUNCTION lanes.skip_failed(text, int, bigint, text[], bigint[], text[], text[], bigint[], text[], text[], text[]) FROM PUBLIC;

CREATE FUNCTION lanes.stop_at_event(projection text, lane int, epoch bigint, "position" bigint, reason text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(stop_at_event.projection, stop_at_event.lane, stop_at_event.epoch);
BEGIN
    PERFORM lanes.stop_lane(stop_at_event.projection, stop_at_event.lane, stop_at_event.epoch, stop_at_event.reason);
    UPDATE lanes.checkpoint AS c
    SET failed_position = stop_at_event."position"
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane
      AND c."position" < stop_at_event."position";
END
$$;
COMMENT ON FUNCTION lanes.stop_at_event(text, int, bigint, bigint, text) IS
    'As lanes.stop_lane, and names the event that cannot be applied, so that lanes.skip can be asked for it';
REVOKE ALL ON FUNCTION lanes.stop_at_event(text, int, bigint, bigint, text) FROM PUBLIC;

CREATE FUNCTION lanes.skips_ahead(projection text, lane int)
    RETURNS SETOF bigint
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(skips_ahead.projection);
BEGIN
    RETURN QUERY
    SELECT s."position"
    FROM lanes.skipped_event AS s
    JOIN lanes.checkpoint AS c USING (projection, version)
    WHERE s.projection = defined.name AND s.version = defined.version AND c.lane = skips_ahead.lane
      AND s."position" > c."position" AND s.event_type IS NULL
    ORDER BY s."position";
END
$$;
COMMENT ON FUNCTION lanes.skips_ahead(text, int) IS
    'The positions beyond a lane''s checkpoint whose skipping was asked for before a lane met them';
REVOKE ALL ON FUNCTION lanes.skips_ahead(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.retry(projection text, key text DEFAULT NULL) RETURNS int
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(retry.projection);
    asked   int;
BEGIN
    UPDATE lanes.parked_key AS k
    SET next_try_at = pg_catalog.clock_timestamp(), attempts = 0
    WHERE k.projection = defined.name AND k.version = defined.version
      AND (retry.key IS NULL OR k.key = retry.key);
    GET DIAGNOSTICS asked = ROW_COUNT;
    IF asked = 0 AND retry.key IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'no_data_found',
            MESSAGE = pg_catalog.format('key "%s" of projection "%s" is not parked', retry.key, retry.projection),
            HINT = 'The table lanes.parked_key lists the ones that are.';
    END IF;
    RETURN asked;
END
$$;
COMMENT ON FUNCTION lanes.retry(text, text) IS
    'Asks that a parked key, or all of a projection (key null), be tried again now; the lane''s owner does it within seconds. Returns how many keys';
REVOKE ALL ON FUNCTION lanes.retry(text, text) FROM PUBLIC;

CREATE FUNCTION lanes.skip(projection text, "position" bigint, reason text) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(skip.projection);
    waiting record;
BEGIN
    IF COALESCE(skip.reason, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'reason must not be empty',
            HINT = 'Say why the event is never to be applied: it is kept in lanes.skipped_event.';
    END IF;
    IF COALESCE(skip."position", 0) <= 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('position must be at least 1, not %s', COALESCE(skip."position"::text, 'null')),
            HINT = 'The table lanes.parked_event lists the positions of events that wait.';
    END IF;
    -- No batch and no retry runs meanwhile: in the order in which nobody else locks two lanes.
    PERFORM FROM lanes.checkpoint AS c
    WHERE c.projection = defined.name AND c.version = defined.version ORDER BY c.lane FOR UPDATE;

    DELETE FROM lanes.parked_event AS p
    USING lanes.parked_key AS k
    WHERE p.projection = defined.name AND p.version = defined.version AND p."position" = skip."position"
      AND (k.projection, k.version, k.slot, k.key_hash) = (p.projection, p.version, p.slot, p.key_hash)
    RETURNING p.*, k.key, k.sqlstate, k.error INTO waiting;
    IF FOUND THEN
        INSERT INTO lanes.skipped_event
            (projection, version, "position", key, event_type, event_key, event_ts, payload, sqlstate, error, reason)
        VALUES (defined.name, defined.version, skip."position", waiting.key, waiting.event_type, waiting.event_key,
            waiting.event_ts, waiting.payload, waiting.sqlstate, waiting.error, skip.reason);
        IF EXISTS (
            SELECT FROM lanes.parked_event AS p
            WHERE p.projection = defined.name AND p.version = defined.version AND p.slot = waiting.slot
              AND p.key_hash = waiting.key_hash)
        THEN
            UPDATE lanes.parked_key AS k SET next_try_at = pg_catalog.clock_timestamp(), attempts = 0
            WHERE k.projection = defined.name AND k.version = defined.version AND k.slot = waiting.slot
              AND k.key_hash = waiting.key_hash;
        ELSE
            DELETE FROM lanes.parked_key AS k
            WHERE k.projection = defined.name AND k.version = defined.version AND k.slot = waiting.slot
              AND k.key_hash = waiting.key_hash;
        END IF;
        RETURN true;
    END IF;

    IF EXISTS (
        SELECT FROM lanes.skipped_event AS s
        WHERE s.projection = defined.name AND s.version = defined.version AND s."position" = skip."position")
    THEN
        RETURN false;
    END IF;
    -- Only a lane that stands before the event can still be told: anywhere else the event may have been applied.
    IF NOT EXISTS (
        SELECT FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.failed_position = skip."position")
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('position %s of projection "%s" is not waiting', skip."position", skip.projection),
            DETAIL = 'The event is not parked, and no lane stands before it.',
            HINT = 'The table lanes.parked_event lists the events that wait, lanes.status the lanes that stand.';
    END IF;
    INSERT INTO lanes.skipped_event (projection, version, "position", reason)
    VALUES (defined.name, defined.version, skip."position", skip.reason);
    RETURN true;
END
$$;
COMMENT ON FUNCTION lanes.skip(text, bigint, text) IS
    'Says that an event is never to be applied: one that is parked, or at which a lane stands. What waits behind it is tried again at once. The row in lanes.skipped_event is the audit; false if there is one already';
REVOKE ALL ON FUNCTION lanes.skip(text, bigint, text) FROM PUBLIC;

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

-- The view over a table whose values are spread over several rows a key (row shards, buckets).
--
-- The only maker of such views, for counters, projections and users alike. A floor or ceiling is applied to the total
-- and nowhere else: what a single row holds says nothing about the total.

CREATE FUNCTION lanes.create_sum_view(view text, source regclass, group_by text[], sums text[] DEFAULT '{}',
                                      mins text[] DEFAULT '{}', maxs text[] DEFAULT '{}', counts text[] DEFAULT '{}',
                                      floors jsonb DEFAULT '{}', ceilings jsonb DEFAULT '{}',
                                      lasts jsonb DEFAULT '{}', firsts jsonb DEFAULT '{}',
                                      column_types boolean DEFAULT false)
    RETURNS regclass
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts       text[];
    schema_name text;
    source_name text;
    source_kind "char";
    item        record;
    bound       record;
    order_name  text;
    orders      text[];
    present     text[];
    column_type text;
    base_type   oid;
    is_array    boolean;
    expression  text;
    used        text[] := '{}'::text[];
    columns     text[] := '{}'::text[];
    keys        text[] := '{}'::text[];
BEGIN
    IF create_sum_view.view IS NULL OR create_sum_view.source IS NULL OR create_sum_view.group_by IS NULL
        OR create_sum_view.sums IS NULL OR create_sum_view.mins IS NULL OR create_sum_view.maxs IS NULL
        OR create_sum_view.counts IS NULL OR create_sum_view.floors IS NULL OR create_sum_view.ceilings IS NULL
        OR create_sum_view.lasts IS NULL OR create_sum_view.firsts IS NULL OR create_sum_view.column_types IS NULL
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'arguments of lanes.create_sum_view must not be null',
            HINT = 'Pass an empty array or object where there are no columns.';
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
        SELECT * FROM (VALUES ('floors', create_sum_view.floors), ('ceilings', create_sum_view.ceilings),
            ('lasts', create_sum_view.lasts), ('firsts', create_sum_view.firsts)) AS a (name, value)
        WHERE pg_catalog.jsonb_typeof(a.value) <> 'object'
    LOOP
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('%s must be an object of columns, not %s', item.name, item.value),
            HINT = 'Pass for example floors => ''{"seats": 0}'' or lasts => ''{"state": ["changed_at", "id"]}''.';
    END LOOP;

    FOR bound IN
        SELECT 'floor' AS kind, f.key AS name, f.value FROM pg_catalog.jsonb_each(create_sum_view.floors) AS f
        UNION ALL SELECT 'ceiling', c.key, c.value FROM pg_catalog.jsonb_each(create_sum_view.ceilings) AS c
    LOOP
        IF bound.name <> ALL (create_sum_view.sums) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = pg_catalog.format('column "%s" has a %s but is not in sums', bound.name, bound.kind),
                HINT = 'Only the total of a summed column can have a floor or a ceiling.';
        ELSIF pg_catalog.jsonb_typeof(bound.value) <> 'number' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = pg_catalog.format('the %s of column "%s" must be a number, not %s',
                    bound.kind, bound.name, bound.value);
        ELSIF bound.kind = 'floor' AND (create_sum_view.ceilings -> bound.name) < bound.value THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = pg_catalog.format('the floor of column "%s", %s, is above its ceiling, %s',
                    bound.name, bound.value, create_sum_view.ceilings -> bound.name);
        END IF;
    END LOOP;

    FOR item IN
        SELECT 'key' AS kind, k.name, NULL::jsonb AS ordered_by FROM pg_catalog.unnest(create_sum_view.group_by) AS k (name)
        UNION ALL SELECT 'sum', k.name, NULL FROM pg_catalog.unnest(create_sum_view.sums) AS k (name)
        UNION ALL SELECT 'min', k.name, NULL FROM pg_catalog.unnest(create_sum_view.mins) AS k (name)
        UNION ALL SELECT 'max', k.name, NULL FROM pg_catalog.unnest(create_sum_view.maxs) AS k (name)
        UNION ALL SELECT 'count', k.name, NULL FROM pg_catalog.unnest(create_sum_view.counts) AS k (name)
        UNION ALL SELECT 'last', k.key, k.value FROM pg_catalog.jsonb_each(create_sum_view.lasts) AS k
        UNION ALL SELECT 'first', k.key, k.value FROM pg_catalog.jsonb_each(create_sum_view.firsts) AS k
    LOOP
        -- A view column has its source's name, so one column gives one view column.
        IF item.name = ANY (used) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = pg_catalog.format('column "%s" is named more than once', item.name),
                HINT = 'Each column of the source gives at most one column of the view.';
        END IF;
        used := used || item.name;

        SELECT a.atttypid, pg_catalog.format_type(a.atttypid, a.atttypmod) INTO base_type, column_type
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
            CONTINUE;
        ELSIF item.kind IN ('min', 'max', 'count') THEN
            expression := pg_catalog.format('pg_catalog.%s(s.%I)', item.kind, item.name);
        ELSIF item.kind IN ('last', 'first') THEN
            IF pg_catalog.jsonb_typeof(item.ordered_by) <> 'array'
                OR pg_catalog.jsonb_array_length(item.ordered_by) = 0
                OR EXISTS (SELECT FROM pg_catalog.jsonb_array_elements(item.ordered_by) AS o (name)
                           WHERE pg_catalog.jsonb_typeof(o.name) <> 'string')
            THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'invalid_parameter_value',
                    MESSAGE = pg_catalog.format('what orders column "%s" must be an array of columns, not %s',
                        item.name, item.ordered_by),
                    HINT = 'Pass for example lasts => ''{"state": ["changed_at", "id"]}''.';
            END IF;
            orders := '{}';
            present := '{}';
            FOR order_name IN SELECT o.name FROM pg_catalog.jsonb_array_elements_text(item.ordered_by) AS o (name) LOOP
                IF NOT EXISTS (
                    SELECT FROM pg_catalog.pg_attribute AS a
                    WHERE a.attrelid = create_sum_view.source AND a.attname = order_name AND a.attnum > 0
                      AND NOT a.attisdropped)
                THEN
                    RAISE EXCEPTION USING
                        ERRCODE = 'undefined_column',
                        MESSAGE = pg_catalog.format('column "%s" of relation "%s" does not exist', order_name, source_name);
                END IF;
                -- Null comes before every value, from whichever end one looks.
                orders := orders || pg_catalog.format(
                    CASE item.kind WHEN 'last' THEN 's.%I DESC NULLS LAST' ELSE 's.%I ASC NULLS FIRST' END, order_name);
                present := present || pg_catalog.format('s.%I IS NOT NULL', order_name);
            END LOOP;
            -- A row without any of the order columns never had a value. Arrays cannot be elements of an array one by
            -- one, so there the whole row is gathered.
            SELECT t.typsubscript = 'pg_catalog.array_subscript_handler'::regproc INTO is_array
            FROM pg_catalog.pg_type AS t WHERE t.oid = base_type;
            expression := pg_catalog.format(
                CASE WHEN is_array THEN '((pg_catalog.array_agg(s ORDER BY %2$s) FILTER (WHERE %3$s))[1]).%1$I'
                    ELSE '(pg_catalog.array_agg(s.%1$I ORDER BY %2$s) FILTER (WHERE %3$s))[1]' END,
                item.name, pg_catalog.array_to_string(orders, ', '), pg_catalog.array_to_string(present, ' OR '));
        ELSIF base_type IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN
            -- The sum of bigint is numeric and cannot overflow; that of smaller integers would be a bigint that wraps
            -- round without an error.
            expression := pg_catalog.format('pg_catalog.sum(s.%I::pg_catalog.int8)', item.name);
        ELSIF base_type IN ('numeric'::regtype, 'float4'::regtype, 'float8'::regtype) THEN
            expression := pg_catalog.format('pg_catalog.sum(s.%I)', item.name);
        ELSE
            RAISE EXCEPTION USING
                ERRCODE = 'datatype_mismatch',
                MESSAGE = pg_catalog.format('column "%s" of type %s cannot be summed', item.name,
                    pg_catalog.format_type(base_type, NULL)),
                HINT = 'Sum columns of an integer type, numeric, real or double precision; others can be counted.';
        END IF;

        IF item.kind = 'sum' AND (create_sum_view.floors ? item.name OR create_sum_view.ceilings ? item.name) THEN
            -- GREATEST and LEAST pass over nulls, so a total of nothing would become the floor.
            expression := pg_catalog.format('CASE WHEN %1$s IS NOT NULL THEN %2$s END', expression,
                CASE WHEN NOT create_sum_view.ceilings ? item.name
                    THEN pg_catalog.format('GREATEST(%s, %L)', expression, create_sum_view.floors ->> item.name)
                WHEN NOT create_sum_view.floors ? item.name
                    THEN pg_catalog.format('LEAST(%s, %L)', expression, create_sum_view.ceilings ->> item.name)
                ELSE pg_catalog.format('LEAST(GREATEST(%s, %L), %L)', expression,
                    create_sum_view.floors ->> item.name, create_sum_view.ceilings ->> item.name) END);
        END IF;
        -- A count is not of its column's type. The value chosen by last and first is, as it stands.
        IF item.kind IN ('last', 'first') OR create_sum_view.column_types AND item.kind <> 'count' THEN
            expression := pg_catalog.format('(%s)::%s', expression, column_type);
        END IF;
        columns := columns || pg_catalog.format('%s AS %I', expression, item.name);
    END LOOP;

    IF pg_catalog.cardinality(columns) = pg_catalog.cardinality(keys) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('view "%s" would have nothing to aggregate', create_sum_view.view),
            HINT = 'Name at least one column in sums, mins, maxs, counts, lasts or firsts.';
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
    FOR bound IN
        SELECT f.name, pg_catalog.concat_ws(' and ',
            'at least ' || (create_sum_view.floors ->> f.name), 'at most ' || (create_sum_view.ceilings ->> f.name)) AS bounds
        FROM pg_catalog.unnest(create_sum_view.sums) AS f (name)
        WHERE create_sum_view.floors ? f.name OR create_sum_view.ceilings ? f.name
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON COLUMN %I.%I.%I IS %L',
            schema_name, parts[pg_catalog.cardinality(parts)], bound.name,
            pg_catalog.format('The total as it is read: %s. The rows keep what was added', bound.bounds));
    END LOOP;
    RETURN pg_catalog.format('%I.%I', schema_name, parts[pg_catalog.cardinality(parts)])::regclass;
END
$$;
COMMENT ON FUNCTION lanes.create_sum_view(text, regclass, text[], text[], text[], text[], text[], jsonb, jsonb, jsonb, jsonb, boolean) IS
    'Creates a view that adds up the rows of source with the same group_by columns; a name without schema goes into the schema of source. floors and ceilings ({"column": number}) bound the totals of sums; lasts and firsts ({"column": [order columns]}) show the value of the row that is greatest or least in that order. Sums of integers are numeric, or with column_types of their column''s type';
REVOKE ALL ON FUNCTION lanes.create_sum_view(text, regclass, text[], text[], text[], text[], text[], jsonb, jsonb, jsonb, jsonb, boolean) FROM PUBLIC;

-- Sharded counters: a table with several rows a key, functions that add to one of them, and a view of the totals.
--
-- The table, its view and its functions are the user's: nothing here owns or remembers them. What the other functions
-- must know of a counter stands in its own constraints. Any row of a key may be negative or absent; only the sum means
-- something, so floors and ceilings are the view's. Every statement takes row locks in the order of the primary key.

CREATE FUNCTION lanes.counter_parts(counter regclass, OUT schema_name name, OUT table_name name, OUT constraint_name name,
                                    OUT keys name[], OUT counters name[], OUT shards int)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    primary_key name[];
    foreign_columns text;
BEGIN
    SELECT n.nspname, c.relname, k.conname,
        ARRAY(SELECT a.attname FROM pg_catalog.unnest(k.conkey) WITH ORDINALITY AS u (attnum, place)
              JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = u.attnum ORDER BY u.place)
    INTO schema_name, table_name, constraint_name, primary_key
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_constraint AS k ON k.conrelid = c.oid AND k.contype = 'p'
    WHERE c.oid = counter_parts.counter;

    SELECT pg_catalog.substring(pg_catalog.pg_get_constraintdef(k.oid), 'shard_id < ([0-9]+)')::int INTO shards
    FROM pg_catalog.pg_constraint AS k
    WHERE k.conrelid = counter_parts.counter AND k.contype = 'c' AND k.conname = 'shard_id_range';

    keys := pg_catalog.array_remove(primary_key, 'shard_id');
    SELECT pg_catalog.array_agg(a.attname ORDER BY a.attnum) FILTER (WHERE a.atttypid = 'int8'::regtype AND a.attnotnull),
        pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ') FILTER (WHERE a.atttypid <> 'int8'::regtype OR NOT a.attnotnull)
    INTO counters, foreign_columns
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = counter_parts.counter AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attname <> ALL (primary_key || '{bumps,bumped_at}'::name[]);

    IF primary_key[pg_catalog.cardinality(primary_key)] IS DISTINCT FROM 'shard_id' OR shards IS NULL OR counters IS NULL
        OR (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute AS a
            WHERE a.attrelid = counter_parts.counter AND NOT a.attisdropped
              AND (a.attname = 'bumps' AND a.atttypid = 'int8'::regtype
                OR a.attname = 'bumped_at' AND a.atttypid = 'timestamptz'::regtype)) <> 2
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'wrong_object_type',
            MESSAGE = pg_catalog.format('%s is not a sharded counter', counter_parts.counter),
            HINT = 'Pass the table that lanes.create_sharded_counter made, not its view.';
    ELSIF foreign_columns IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('sharded counter %s has columns that cannot be added up', counter_parts.counter),
            DETAIL = pg_catalog.format('The columns are %s.', foreign_columns),
            HINT = 'Keep them in a table of their own: the rows of a sharded counter come and go.';
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.counter_parts(regclass) IS
    'What a sharded counter consists of, read from the catalog; an error if the table is none';

CREATE FUNCTION lanes.write_counter_functions(counter regclass, spread text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts     record;
    types     text[];
    reserved  int;
    -- What a call adds when it does not say: one, if there is only one thing to count.
    standard  int;
    place     text;
    shard     text;
    add       text;
    add_many  text;
    item      record;
    arguments text[] := '{}'::text[];
    arrays    text[] := '{}'::text[];
    checks    text := '';
    added     text;
BEGIN
    parts := lanes.counter_parts(write_counter_functions.counter);
    SELECT pg_catalog.array_agg(pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY u.place) INTO types
    FROM pg_catalog.unnest(parts.keys) WITH ORDINALITY AS u (name, place)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = write_counter_functions.counter AND a.attname = u.name;
    reserved := pg_catalog.cardinality(parts.keys) + pg_catalog.cardinality(parts.counters) + 1;
    standard := CASE pg_catalog.cardinality(parts.counters) WHEN 1 THEN 1 ELSE 0 END;
    add := pg_catalog.format('%I.%I', parts.schema_name, parts.table_name || '_add');
    add_many := pg_catalog.format('%I.%I', parts.schema_name, parts.table_name || '_add_many');
    place := pg_catalog.format('%I.%I', parts.schema_name, parts.table_name);

    -- Process ids are given out one after another, so sessions that start together get shards of their own.
    shard := CASE write_counter_functions.spread
        WHEN 'backend' THEN pg_catalog.format('pg_catalog.pg_backend_pid() %% %s', parts.shards)
        WHEN 'random' THEN pg_catalog.format('pg_catalog.floor(pg_catalog.random() * %s)::int', parts.shards)
        WHEN 'key' THEN 'NULL' END;
    IF shard IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('spread must be backend, random or key, not "%s"',
                COALESCE(write_counter_functions.spread, 'null')),
            HINT = 'backend and random need nothing of the caller; with key, each call names what spreads it.';
    END IF;
    IF write_counter_functions.spread = 'key' THEN
        checks := pg_catalog.format($template$
    IF $%s IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'spread must not be null',
            HINT = 'Pass what tells the writers of one counter apart, for example the id of the user or of the event.';
    END IF;$template$, reserved);
    END IF;
    -- Two statements, so that a call without spread key needs no extension once the counter is made.
    shard := pg_catalog.format($template$
    IF $%1$s IS NULL THEN
        chosen_shard := %2$s;
    ELSE
        chosen_shard := @extschema@.shard($%1$s, %3$s);
    END IF;$template$, reserved, shard, parts.shards);

    SELECT pg_catalog.string_agg(pg_catalog.format('%1$I = c.%1$I + EXCLUDED.%1$I', n.name), ', ') INTO added
    FROM pg_catalog.unnest(parts.counters) AS n (name);

    FOR item IN
        SELECT k.name, types[k.place] AS type, NULL::int AS standard
        FROM pg_catalog.unnest(parts.keys) WITH ORDINALITY AS k (name, place)
        UNION ALL SELECT n.name, 'bigint', standard FROM pg_catalog.unnest(parts.counters) AS n (name)
    LOOP
        arguments := arguments || (pg_catalog.format('%I %s', item.name, item.type)
            || COALESCE(' DEFAULT ' || item.standard::text, ''));
        arrays := arrays || (pg_catalog.format('%I %s[]', item.name, item.type)
            || CASE WHEN item.standard IS NULL THEN '' ELSE ' DEFAULT NULL' END);
    END LOOP;

    EXECUTE pg_catalog.format($template$
CREATE OR REPLACE FUNCTION %1$s(%2$s, spread text DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    chosen_shard int;
BEGIN%3$s%8$s
    INSERT INTO %4$s AS c (%5$s, shard_id, %6$s, bumps, bumped_at)
    VALUES (%7$s, chosen_shard, %9$s, 1, pg_catalog.clock_timestamp())
    ON CONFLICT ON CONSTRAINT %10$I
    DO UPDATE SET %11$s, bumps = c.bumps + 1, bumped_at = EXCLUDED.bumped_at;
END
$body$
$template$,
        add, pg_catalog.array_to_string(arguments, ', '), checks, place,
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(k.name), ', ') FROM pg_catalog.unnest(parts.keys) AS k (name)),
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n.name), ', ') FROM pg_catalog.unnest(parts.counters) AS n (name)),
        (SELECT pg_catalog.string_agg('$' || i, ', ') FROM pg_catalog.generate_series(1, pg_catalog.cardinality(parts.keys)) AS i),
        shard,
        (SELECT pg_catalog.string_agg('$' || i, ', ')
         FROM pg_catalog.generate_series(pg_catalog.cardinality(parts.keys) + 1, reserved - 1) AS i),
        parts.constraint_name, added);

    -- One row a key, in the order of the keys, whatever order they came in: overlapping calls cannot deadlock.
    EXECUTE pg_catalog.format($template$
CREATE OR REPLACE FUNCTION %1$s(%2$s, spread text DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    chosen_shard int;
BEGIN%3$s
    IF $1 IS NULL OR %4$s THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'the arrays of keys and amounts must have the same length',
            HINT = 'Pass one element a key in each array; an array of amounts may be left out.';
    ELSIF %5$s THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'an amount must not be null';
    END IF;%6$s
    INSERT INTO %7$s AS c (%8$s, shard_id, %9$s, bumps, bumped_at)
    SELECT %10$s, chosen_shard, %11$s, 1, pg_catalog.clock_timestamp()
    FROM ROWS FROM (%12$s) AS k (%13$s)
    GROUP BY %10$s
    ORDER BY %10$s
    ON CONFLICT ON CONSTRAINT %14$I
    DO UPDATE SET %15$s, bumps = c.bumps + 1, bumped_at = EXCLUDED.bumped_at;
END
$body$
$template$,
        add_many, pg_catalog.array_to_string(arrays, ', '), checks,
        (SELECT pg_catalog.string_agg(CASE WHEN i <= pg_catalog.cardinality(parts.keys)
                THEN pg_catalog.format('pg_catalog.cardinality($%s) IS DISTINCT FROM pg_catalog.cardinality($1)', i)
                ELSE pg_catalog.format('pg_catalog.cardinality($%s) <> pg_catalog.cardinality($1)', i) END, ' OR ')
         FROM pg_catalog.generate_series(2, reserved - 1) AS i),
        (SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.array_position($%s, NULL) IS NOT NULL', i), ' OR ')
         FROM pg_catalog.generate_series(pg_catalog.cardinality(parts.keys) + 1, reserved - 1) AS i),
        shard, place,
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(k.name), ', ') FROM pg_catalog.unnest(parts.keys) AS k (name)),
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n.name), ', ') FROM pg_catalog.unnest(parts.counters) AS n (name)),
        -- Elements of an array know no length or precision, and two that become one key must be one group.
        (SELECT pg_catalog.string_agg(pg_catalog.format('k.k%s::%s', i, types[i]), ', ')
         FROM pg_catalog.generate_series(1, pg_catalog.cardinality(parts.keys)) AS i),
        (SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.sum(COALESCE(k.k%s, %s))::bigint', i, standard), ', ')
         FROM pg_catalog.generate_series(pg_catalog.cardinality(parts.keys) + 1, reserved - 1) AS i),
        (SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.unnest($%s)', i), ', ')
         FROM pg_catalog.generate_series(1, reserved - 1) AS i),
        (SELECT pg_catalog.string_agg(pg_catalog.format('k%s', i), ', ') FROM pg_catalog.generate_series(1, reserved - 1) AS i),
        parts.constraint_name, added);

    -- Both write, so nobody has them unasked.
    EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s, %s FROM PUBLIC', add, add_many);
    EXECUTE pg_catalog.format('COMMENT ON FUNCTION %s IS %L', add, pg_catalog.format(
        'Adds to one row of sharded counter %s, chosen by spread if given, else by %s',
        write_counter_functions.counter, write_counter_functions.spread));
    EXECUTE pg_catalog.format('COMMENT ON FUNCTION %s IS %L', add_many, pg_catalog.format(
        'Adds to one row of sharded counter %s for each of many keys, in the order of the keys so that calls cannot deadlock',
        write_counter_functions.counter));
END
$$;
COMMENT ON FUNCTION lanes.write_counter_functions(regclass, text) IS
    'Creates or replaces the functions that add to a sharded counter. A part of create_sharded_counter and set_counter_shards';
REVOKE ALL ON FUNCTION lanes.write_counter_functions(regclass, text) FROM PUBLIC;

CREATE FUNCTION lanes.create_sharded_counter_in(name text, key_columns text[], counters text[], shards int, spread text,
                                                floors jsonb, ceilings jsonb, schema name)
    RETURNS regclass
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The longest name that is derived of the counter's: name_add_many.
    longest_name CONSTANT int := 63 - pg_catalog.length('_add_many');
    -- Names that the table, or a parameter of its functions, has already.
    reserved CONSTANT text[] := '{shard_id,bumps,bumped_at,spread,chosen_shard}'::text[];
    parts   text[];
    item    text;
    column_name text;
    type_name text;
    named   text[] := '{}'::text[];
    keys    text[] := '{}'::text[];
    columns text[] := '{}'::text[];
    place   text;
    counter regclass;
BEGIN
    IF create_sharded_counter_in.name IS NULL OR create_sharded_counter_in.key_columns IS NULL
        OR create_sharded_counter_in.counters IS NULL OR create_sharded_counter_in.shards IS NULL
        OR create_sharded_counter_in.floors IS NULL OR create_sharded_counter_in.ceilings IS NULL
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'arguments of lanes.create_sharded_counter must not be null';
    ELSIF create_sharded_counter_in.shards NOT BETWEEN 1 AND 4096 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('number of shards must be from 1 to 4096, not %s', create_sharded_counter_in.shards),
            HINT = 'Every read adds up that many rows a key; suggest_shards says how many a rate of writes needs.';
    ELSIF pg_catalog.cardinality(create_sharded_counter_in.key_columns) = 0
        OR pg_catalog.cardinality(create_sharded_counter_in.counters) = 0
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('counter "%s" needs at least one key column and one counter', create_sharded_counter_in.name),
            HINT = 'For example lanes.create_sharded_counter(''likes'', ''{post int}'', ''{likes}'').';
    END IF;

    parts := pg_catalog.parse_ident(create_sharded_counter_in.name);
    IF pg_catalog.cardinality(parts) > 2 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_name',
            MESSAGE = pg_catalog.format('"%s" is not the name of a table', create_sharded_counter_in.name),
            HINT = 'Pass name or schema.name.';
    ELSIF pg_catalog.cardinality(parts) = 1 THEN
        IF create_sharded_counter_in.schema IS NULL OR pg_catalog.left(create_sharded_counter_in.schema, 3) = 'pg_' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_schema_name',
                MESSAGE = pg_catalog.format('counter "%s" has no schema, and search_path names none', parts[1]),
                HINT = 'Pass schema.name, or set search_path.';
        END IF;
        parts := ARRAY[create_sharded_counter_in.schema::text, parts[1]];
    END IF;
    IF pg_catalog.octet_length(parts[2]) > longest_name THEN
        RAISE EXCEPTION USING
            ERRCODE = 'name_too_long',
            MESSAGE = pg_catalog.format('name "%s" of a counter is longer than %s bytes', parts[2], longest_name),
            DETAIL = 'The names of its view and functions are longer by up to nine bytes.';
    END IF;

    FOREACH item IN ARRAY create_sharded_counter_in.key_columns LOOP
        -- A name, quoted or not, and a type.
        column_name := pg_catalog.substring(item, '^\s*("(?:[^"]|"")+"|[^"\s]+)\s+\S');
        type_name := pg_catalog.substring(item, '^\s*(?:"(?:[^"]|"")+"|[^"\s]+)\s+(\S.*)$');
        IF column_name IS NULL OR pg_catalog.cardinality(pg_catalog.parse_ident(column_name)) <> 1 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = pg_catalog.format('"%s" is not a key column', COALESCE(item, 'null')),
                HINT = 'Write each as name and type, for example ''{post int,day date}''.';
        -- Reads the whole text as one type, so nothing else can hide in it.
        ELSIF pg_catalog.to_regtype(type_name) IS NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = pg_catalog.format('type "%s" of key column %s does not exist', type_name, column_name),
                HINT = 'Write a type outside pg_catalog with its schema.';
        END IF;
        column_name := (pg_catalog.parse_ident(column_name))[1];
        named := named || column_name;
        keys := keys || column_name;
        columns := columns || pg_catalog.format('%I %s NOT NULL', column_name, type_name);
    END LOOP;
    columns := columns || 'shard_id int NOT NULL'::text;
    FOREACH item IN ARRAY create_sharded_counter_in.counters LOOP
        IF COALESCE(item, '') = '' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = 'a counter must have a name',
                HINT = 'For example ''{likes}''; counters are of type bigint.';
        END IF;
        named := named || item;
        columns := columns || pg_catalog.format('%I bigint NOT NULL DEFAULT 0', item);
    END LOOP;
    FOREACH item IN ARRAY named LOOP
        IF item = ANY (reserved) OR pg_catalog.cardinality(pg_catalog.array_positions(named, item)) > 1 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'duplicate_column',
                MESSAGE = pg_catalog.format('a counter cannot have another column "%s"', item),
                HINT = pg_catalog.format('The names %s are its own.', pg_catalog.array_to_string(reserved, ', '));
        END IF;
    END LOOP;

    place := pg_catalog.format('%I.%I', parts[1], parts[2]);
    -- Half-filled pages, so that a row's next version finds room in its own page (HOT).
    EXECUTE pg_catalog.format(
        'CREATE TABLE %s (%s, bumps bigint NOT NULL DEFAULT 0, bumped_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(), '
        'PRIMARY KEY (%s, shard_id), CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND shard_id < %s)) WITH (fillfactor = 50)',
        place, pg_catalog.array_to_string(columns, ', '),
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(k.name), ', ') FROM pg_catalog.unnest(keys) AS k (name)),
        create_sharded_counter_in.shards);
    counter := place::regclass;
    EXECUTE pg_catalog.format('COMMENT ON TABLE %s IS %L', place, pg_catalog.format(
        'Sharded counter: several rows a key, of which only the sum means something; read %s_total', parts[2]));
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.shard_id IS %L', place, 'Row shard: which of a key''s rows this is');
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.bumps IS %L', place,
        'How often this row was written since its key was last folded; lanes.skew reads it');
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.bumped_at IS %L', place,
        'When this row was written last; lanes.compact_counter folds keys that are cold');
    PERFORM lanes.write_counter_functions(counter, create_sharded_counter_in.spread);
    PERFORM lanes.create_sum_view(pg_catalog.quote_ident(parts[2] || '_total'), counter, keys, create_sharded_counter_in.counters,
        floors => create_sharded_counter_in.floors, ceilings => create_sharded_counter_in.ceilings);
    RETURN counter;
END
$$;
COMMENT ON FUNCTION lanes.create_sharded_counter_in(text, text[], text[], int, text, jsonb, jsonb, name) IS
    'As lanes.create_sharded_counter, with the schema of a name that has none';
REVOKE ALL ON FUNCTION lanes.create_sharded_counter_in(text, text[], text[], int, text, jsonb, jsonb, name) FROM PUBLIC;

-- Without SET search_path, since the caller's tells the schema; a body of this form is parsed once, here.
CREATE FUNCTION lanes.create_sharded_counter(name text, key_columns text[], counters text[], shards int DEFAULT 16,
                                             spread text DEFAULT 'backend', floors jsonb DEFAULT '{}', ceilings jsonb DEFAULT '{}')
    RETURNS regclass
    VOLATILE PARALLEL UNSAFE LANGUAGE sql SECURITY INVOKER
BEGIN ATOMIC
    SELECT lanes.create_sharded_counter_in(create_sharded_counter.name, create_sharded_counter.key_columns,
        create_sharded_counter.counters, create_sharded_counter.shards, create_sharded_counter.spread,
        create_sharded_counter.floors, create_sharded_counter.ceilings, pg_catalog.current_schema());
END;
COMMENT ON FUNCTION lanes.create_sharded_counter(text, text[], text[], int, text, jsonb, jsonb) IS
    'Creates a counter of several rows a key in the user''s schema: table name, view name_total with the sums, functions name_add and name_add_many. spread (backend, random, key) says what chooses the row where a call names no spread key; floors and ceilings bound the totals in the view';
REVOKE ALL ON FUNCTION lanes.create_sharded_counter(text, text[], text[], int, text, jsonb, jsonb) FROM PUBLIC;

CREATE FUNCTION lanes.set_counter_shards(counter regclass, shards int, spread text DEFAULT 'backend') RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM lanes.counter_parts(set_counter_shards.counter);
    IF set_counter_shards.shards IS NULL OR set_counter_shards.shards NOT BETWEEN 1 AND 4096 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('number of shards must be from 1 to 4096, not %s',
                COALESCE(set_counter_shards.shards::text, 'null')),
            HINT = 'Every read adds up that many rows a key; suggest_shards says how many a rate of writes needs.';
    END IF;
    -- Rows above the new number stay, and count, until their key is folded; so the check is for new rows only.
    EXECUTE pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT shard_id_range, '
        'ADD CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND shard_id < %s) NOT VALID',
        set_counter_shards.counter, set_counter_shards.shards);
    PERFORM lanes.write_counter_functions(set_counter_shards.counter, set_counter_shards.spread);
END
$$;
COMMENT ON FUNCTION lanes.set_counter_shards(regclass, int, text) IS
    'Changes over how many rows a sharded counter spreads from now on, and by what; no row moves, and every total stays';
REVOKE ALL ON FUNCTION lanes.set_counter_shards(regclass, int, text) FROM PUBLIC;

CREATE FUNCTION lanes.compact_counter(counter regclass, cold_after interval DEFAULT '1 hour', most_keys int DEFAULT 1000)
    RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts   record;
    removed bigint;
BEGIN
    parts := lanes.counter_parts(compact_counter.counter);
    IF compact_counter.cold_after IS NULL OR compact_counter.most_keys IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'arguments of lanes.compact_counter must not be null';
    ELSIF compact_counter.most_keys < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('most_keys must be at least 1, not %s', compact_counter.most_keys),
            HINT = 'It is how many keys one call folds; call again until it returns 0.';
    END IF;
    -- Any set of locked rows of one key may be folded into one of them: the sum is the same. What somebody else has
    -- locked, or adds meanwhile, is passed over, so this never waits for a writer and cannot be part of a deadlock.
    -- Sums that do not fit one row stay as they are; so do keys whose rows are all above a number of shards that was
    -- lowered, until the next write gives them a row below it.
    EXECUTE pg_catalog.format($template$
WITH cold AS (
    SELECT %1$s FROM %2$s AS c GROUP BY %1$s
    HAVING pg_catalog.count(*) > 1 AND pg_catalog.max(c.bumped_at) < pg_catalog.clock_timestamp() - $1
        AND %7$s
    ORDER BY %1$s LIMIT $2
), locked AS MATERIALIZED (
    SELECT c.* FROM %2$s AS c JOIN cold AS o ON %3$s
    ORDER BY %1$s, c.shard_id FOR UPDATE OF c SKIP LOCKED
), folded AS MATERIALIZED (
    SELECT %1$s, pg_catalog.min(c.shard_id) AS kept_shard, pg_catalog.array_agg(c.shard_id) AS shards, %4$s
    FROM locked AS c GROUP BY %1$s
    HAVING pg_catalog.count(*) > 1 AND pg_catalog.min(c.shard_id) < %6$s AND %7$s
), kept AS (
    UPDATE %2$s AS c SET %5$s, bumps = 0 FROM folded AS o WHERE %3$s AND c.shard_id = o.kept_shard
), removed AS (
    DELETE FROM %2$s AS c USING folded AS o WHERE %3$s AND c.shard_id = ANY (o.shards) AND c.shard_id <> o.kept_shard
    RETURNING 1
)
SELECT pg_catalog.count(*) FROM removed$template$,
        (SELECT pg_catalog.string_agg(pg_catalog.format('c.%I', k.name), ', ') FROM pg_catalog.unnest(parts.keys) AS k (name)),
        pg_catalog.format('%I.%I', parts.schema_name, parts.table_name),
        (SELECT pg_catalog.string_agg(pg_catalog.format('c.%1$I = o.%1$I', k.name), ' AND ') FROM pg_catalog.unnest(parts.keys) AS k (name)),
        (SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.sum(c.%1$I) AS %1$I', n.name), ', ') FROM pg_catalog.unnest(parts.counters) AS n (name)),
        (SELECT pg_catalog.string_agg(pg_catalog.format('%1$I = o.%1$I::bigint', n.name), ', ') FROM pg_catalog.unnest(parts.counters) AS n (name)),
        parts.shards,
        (SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.sum(c.%I) BETWEEN -9223372036854775808 AND 9223372036854775807', n.name), ' AND ')
         FROM pg_catalog.unnest(parts.counters) AS n (name)))
    INTO removed USING compact_counter.cold_after, compact_counter.most_keys;
    RETURN removed;
END
$$;
COMMENT ON FUNCTION lanes.compact_counter(regclass, interval, int) IS
    'Folds the rows of keys that nobody wrote for a while into one row each, while writers go on; returns how many rows went, so call it until it returns 0';
REVOKE ALL ON FUNCTION lanes.compact_counter(regclass, interval, int) FROM PUBLIC;

-- Logical sharding of a table that is in use: a column that holds the row shard of a key, kept by a trigger.
--
-- No step rewrites the table or holds a strong lock for longer than a change of the catalog takes: the column has no
-- default, rows that were there before are filled in small transactions, and the check is validated under a lock that
-- lets everybody read and write. A strong lock is only waited for as long as lock_timeout says, since everybody else
-- queues behind who waits for it.
--
-- Invariant: once the trigger is there, a row that is written has the right shard; so a row without one is older, and
-- stands in a block that the table had then. What is done and what is not is read from the catalog, so that every step
-- can be repeated after whatever cut it off.

CREATE FUNCTION lanes.set_shard_id() RETURNS trigger
    VOLATILE PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'set_shard_id_wrapper';
COMMENT ON FUNCTION lanes.set_shard_id() IS
    'Trigger of lanes.add_shard_column: sets the shard column to shard(key, n), whatever the statement says';

-- Not dumped: after a restore a backfill begins at the first block again and passes over what is filled.
CREATE TABLE lanes.shard_backfill (
    source       regclass    NOT NULL,
    shard_column name        NOT NULL,
    file_node    oid         NOT NULL,
    blocks       bigint      NOT NULL,
    next_block   bigint      NOT NULL DEFAULT 0,
    pass         int         NOT NULL DEFAULT 1,
    rows_filled  bigint      NOT NULL DEFAULT 0,
    rows_skipped bigint      NOT NULL DEFAULT 0,
    started_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    moved_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT shard_backfill_key PRIMARY KEY (source, shard_column)
) WITH (fillfactor = 50);
COMMENT ON TABLE lanes.shard_backfill IS 'How far backfills of shard columns are; the view lanes.shard_columns shows it';
COMMENT ON COLUMN lanes.shard_backfill.source IS 'The table';
COMMENT ON COLUMN lanes.shard_backfill.shard_column IS 'Its shard column';
COMMENT ON COLUMN lanes.shard_backfill.file_node IS 'The table''s file: VACUUM FULL and its like make another, in which rows stand elsewhere';
COMMENT ON COLUMN lanes.shard_backfill.blocks IS 'Blocks that the table had when the backfill began';
COMMENT ON COLUMN lanes.shard_backfill.next_block IS 'Blocks of this pass that are done';
COMMENT ON COLUMN lanes.shard_backfill.pass IS '1, or 2 for the rows that somebody held locked in the first pass';
COMMENT ON COLUMN lanes.shard_backfill.rows_filled IS 'Rows filled so far';
COMMENT ON COLUMN lanes.shard_backfill.rows_skipped IS 'Rows that somebody held locked in the first pass';
COMMENT ON COLUMN lanes.shard_backfill.started_at IS 'When the backfill began';
COMMENT ON COLUMN lanes.shard_backfill.moved_at IS 'When it last went on';

CREATE VIEW lanes.shard_columns AS
WITH argument AS (
    -- The trigger's arguments: three strings, each ended by a zero byte.
    SELECT t.tgrelid, t.tgname, t.tgargs, POSITION('\x00'::bytea IN t.tgargs) AS first_end
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgfoid = 'lanes.set_shard_id()'::regprocedure AND t.tgnargs = 3
), split AS (
    SELECT a.tgrelid, a.tgname,
        pg_catalog.convert_from(pg_catalog.substring(a.tgargs, 1, a.first_end - 1), pg_catalog.getdatabaseencoding()) AS key,
        pg_catalog.substring(a.tgargs, a.first_end + 1) AS rest
    FROM argument AS a
), ended AS (
    SELECT s.*, POSITION('\x00'::bytea IN s.rest) AS second_end FROM split AS s
), named AS (
    SELECT e.tgrelid, e.tgname, e.key::name AS key,
        pg_catalog.convert_from(pg_catalog.substring(e.rest, 1, e.second_end - 1), pg_catalog.getdatabaseencoding())::name AS shard_column,
        pg_catalog.convert_from(pg_catalog.substring(e.rest, e.second_end + 1, pg_catalog.length(e.rest) - e.second_end - 1),
            pg_catalog.getdatabaseencoding())::int AS shards
    FROM ended AS e
)
SELECT
    n.tgrelid::regclass AS source,
    n.shard_column,
    n.key,
    n.shards,
    CASE
        WHEN a.attnotnull AND k.convalidated THEN 'ready'
        WHEN k.convalidated THEN 'checked'
        WHEN k.oid IS NOT NULL THEN 'filled'
        WHEN b.source IS NOT NULL THEN 'filling'
        ELSE 'added'
    END AS state,
    b.blocks,
    CASE WHEN b.pass > 1 THEN b.blocks ELSE b.next_block END AS blocks_done,
    b.rows_filled,
    b.started_at,
    b.moved_at,
    n.tgname AS trigger_name
FROM named AS n
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = n.tgrelid AND a.attname = n.shard_column AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_constraint AS k ON k.conrelid = n.tgrelid AND k.contype = 'c' AND k.conname = n.tgname
LEFT JOIN lanes.shard_backfill AS b ON b.source::oid = n.tgrelid AND b.shard_column = n.shard_column;
COMMENT ON VIEW lanes.shard_columns IS 'Tables with a shard column that lanes.add_shard_column made, and how far each is';
COMMENT ON COLUMN lanes.shard_columns.source IS 'The table';
COMMENT ON COLUMN lanes.shard_columns.shard_column IS 'Its shard column';
COMMENT ON COLUMN lanes.shard_columns.key IS 'The column whose shard it is';
COMMENT ON COLUMN lanes.shard_columns.shards IS 'Number of shards, built into every value';
COMMENT ON COLUMN lanes.shard_columns.state IS 'added (new rows have it), filling, filled, checked (all rows are known to be right), ready (NOT NULL too)';
COMMENT ON COLUMN lanes.shard_columns.blocks IS 'Blocks that the table had when its backfill began; null before';
COMMENT ON COLUMN lanes.shard_columns.blocks_done IS 'Blocks that the backfill has seen';
COMMENT ON COLUMN lanes.shard_columns.rows_filled IS 'Rows that it filled';
COMMENT ON COLUMN lanes.shard_columns.started_at IS 'When it began';
COMMENT ON COLUMN lanes.shard_columns.moved_at IS 'When it last went on';
COMMENT ON COLUMN lanes.shard_columns.trigger_name IS 'Name of the trigger that keeps the column, and of the check';
-- It shows names and counts, as the catalog does to everybody.
GRANT SELECT ON lanes.shard_columns TO PUBLIC;

CREATE FUNCTION lanes.find_shard_column(source regclass, shard_column name) RETURNS lanes.shard_columns
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_column lanes.shard_columns;
BEGIN
    IF find_shard_column.source IS NULL OR find_shard_column.shard_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'source and shard_column must not be null';
    END IF;
    SELECT s.* INTO found_column FROM lanes.shard_columns AS s
    WHERE s.source = find_shard_column.source AND s.shard_column = find_shard_column.shard_column;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('table %s has no shard column "%s"', find_shard_column.source, find_shard_column.shard_column),
            HINT = 'lanes.add_shard_column adds one; lanes.shard_columns lists the ones there are.';
    END IF;
    RETURN found_column;
END
$$;
COMMENT ON FUNCTION lanes.find_shard_column(regclass, name) IS
    'The row of lanes.shard_columns for a shard column; an error if there is none';

CREATE FUNCTION lanes.run_with_lock_timeout(statement text, lock_timeout interval) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before_call CONSTANT text := pg_catalog.current_setting('lock_timeout');
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout',
        GREATEST(1, (EXTRACT(epoch FROM run_with_lock_timeout.lock_timeout) * 1000)::int)::text, true);
    -- Left by an error, the block sets the timeout back by itself.
    BEGIN
        EXECUTE run_with_lock_timeout.statement;
    EXCEPTION WHEN lock_not_available THEN
        PERFORM pg_catalog.set_config('lock_timeout', before_call, true);
        RETURN false;
    END;
    PERFORM pg_catalog.set_config('lock_timeout', before_call, true);
    RETURN true;
END
$$;
COMMENT ON FUNCTION lanes.run_with_lock_timeout(text, interval) IS
    'Runs a statement that needs a lock with the caller''s rights; false, and nothing changed, if the lock was not free in time. A part of the functions for shard columns';
REVOKE ALL ON FUNCTION lanes.run_with_lock_timeout(text, interval) FROM PUBLIC;

CREATE FUNCTION lanes.add_shard_column(source regclass, key name, shards int, shard_column name DEFAULT 'shard_id',
                                       lock_timeout interval DEFAULT '2 s')
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present    lanes.shard_columns;
    kind       "char";
    is_part    boolean;
    base_type  oid;
    not_null   boolean;
    trigger_name name;
BEGIN
    IF add_shard_column.source IS NULL OR add_shard_column.key IS NULL OR add_shard_column.shards IS NULL
        OR add_shard_column.shard_column IS NULL OR add_shard_column.lock_timeout IS NULL
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'arguments of lanes.add_shard_column must not be null';
    END IF;
    -- Refuses a number below 1.
    PERFORM @extschema@.shard(0, add_shard_column.shards);

    SELECT s.* INTO present FROM lanes.shard_columns AS s
    WHERE s.source = add_shard_column.source AND s.shard_column = add_shard_column.shard_column;
    IF FOUND AND present.key = add_shard_column.key AND present.shards = add_shard_column.shards THEN
        RAISE NOTICE 'table % has shard column "%" already', add_shard_column.source, add_shard_column.shard_column;
        RETURN;
    ELSIF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('shard column "%s" of table %s is shard(%I, %s), not shard(%I, %s)',
                add_shard_column.shard_column, add_shard_column.source, present.key, present.shards,
                add_shard_column.key, add_shard_column.shards),
            DETAIL = 'The number of shards is built into every row, and into every index and query that uses the column.',
            HINT = pg_catalog.format('Add a second column under another name, backfill it, let the readers use it, then drop '
                'the first: SELECT lanes.add_shard_column(%L, %L, %s, %L);', add_shard_column.source, add_shard_column.key,
                add_shard_column.shards, pg_catalog.left(add_shard_column.shard_column::text, 40) || '_' || add_shard_column.shards);
    END IF;

    SELECT c.relkind, c.relispartition OR c.relhassubclass OR EXISTS (
            SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid)
    INTO kind, is_part
    FROM pg_catalog.pg_class AS c WHERE c.oid = add_shard_column.source;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_table',
            MESSAGE = pg_catalog.format('relation with OID %s does not exist', add_shard_column.source::oid);
    ELSIF kind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'wrong_object_type',
            MESSAGE = pg_catalog.format('%s is not a table', add_shard_column.source);
    ELSIF kind = 'p' OR is_part THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('cannot add a shard column to %s, which is partitioned or inherits', add_shard_column.source),
            HINT = 'A partitioned table spreads its rows already.';
    END IF;

    SELECT a.atttypid, a.attnotnull INTO base_type, not_null
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = add_shard_column.source AND a.attname = add_shard_column.key AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_column',
            MESSAGE = pg_catalog.format('column "%s" of table %s does not exist', add_shard_column.key, add_shard_column.source);
    END IF;
    WHILE (SELECT t.typtype = 'd' FROM pg_catalog.pg_type AS t WHERE t.oid = base_type) LOOP
        SELECT t.typbasetype INTO base_type FROM pg_catalog.pg_type AS t WHERE t.oid = base_type;
    END LOOP;
    IF base_type NOT IN ('text'::regtype, 'varchar'::regtype, 'uuid'::regtype, 'int8'::regtype, 'int4'::regtype,
        'int2'::regtype, 'bytea'::regtype)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'datatype_mismatch',
            MESSAGE = pg_catalog.format('column "%s" of type %s cannot be the key of a shard', add_shard_column.key,
                pg_catalog.format_type(base_type, NULL)),
            HINT = 'A key is text, varchar, uuid, bigint, integer, smallint or bytea, because these hash the same everywhere.';
    ELSIF NOT not_null THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('column "%s" of table %s can be null, and null has no shard', add_shard_column.key, add_shard_column.source),
            HINT = pg_catalog.format('Choose another key, or ALTER TABLE %s ALTER COLUMN %I SET NOT NULL.', add_shard_column.source, add_shard_column.key);
    ELSIF EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = add_shard_column.source AND a.attname = add_shard_column.shard_column AND NOT a.attisdropped)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_column',
            MESSAGE = pg_catalog.format('column "%s" of table %s exists already', add_shard_column.shard_column, add_shard_column.source),
            HINT = 'Pass another name as shard_column.';
    ELSIF pg_catalog.octet_length(add_shard_column.shard_column::text) > 50 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'name_too_long',
            MESSAGE = pg_catalog.format('name "%s" of a shard column is longer than 50 bytes', add_shard_column.shard_column);
    END IF;

    -- Triggers fire in the order of their names, and another one may still change the key: this one is to be the last.
    trigger_name := 'zz_lanes_' || add_shard_column.shard_column;
    -- ALWAYS: also what a replica applies must get its shard.
    IF NOT lanes.run_with_lock_timeout(pg_catalog.format(
        'ALTER TABLE %1$s ADD COLUMN %2$I int; '
        'COMMENT ON COLUMN %1$s.%2$I IS %3$L; '
        'CREATE TRIGGER %4$I BEFORE INSERT OR UPDATE ON %1$s FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id(%5$L, %6$L, %7$L); '
        'ALTER TABLE %1$s ENABLE ALWAYS TRIGGER %4$I',
        add_shard_column.source, add_shard_column.shard_column,
        pg_catalog.format('Row shard of %I in 0..%s, kept by trigger %I (pg_lanes)', add_shard_column.key, add_shard_column.shards - 1, trigger_name),
        trigger_name, add_shard_column.key, add_shard_column.shard_column, add_shard_column.shards), add_shard_column.lock_timeout)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'lock_not_available',
            MESSAGE = pg_catalog.format('could not lock table %s within %s', add_shard_column.source, add_shard_column.lock_timeout),
            HINT = 'Some transaction uses it for longer. Try again when it has ended, or pass a longer lock_timeout, during which everybody else waits.';
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.add_shard_column(regclass, name, int, name, interval) IS
    'Adds a column that holds shard(key, shards) of every row written from now on, without rewriting the table; CALL lanes.backfill_shard_column fills the others. Call it alone in its transaction: the table is locked until that ends';
REVOKE ALL ON FUNCTION lanes.add_shard_column(regclass, name, int, name, interval) FROM PUBLIC;

CREATE FUNCTION lanes.fill_shard_batch(source regclass, shard_column name, batch int) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- So many rows fit a block at most, roughly; a window that is looked through in one transaction must not hold many
    -- times more than a batch.
    rows_per_block CONSTANT int := 50;
    present  lanes.shard_columns := lanes.find_shard_column(fill_shard_batch.source, fill_shard_batch.shard_column);
    progress lanes.shard_backfill;
    window_blocks bigint;
    row_limit int;
    first_row tid;
    end_row   tid;
    places    tid[];
    waiting   bigint := 0;
    filled    bigint := 0;
BEGIN
    INSERT INTO lanes.shard_backfill AS b (source, shard_column, file_node, blocks)
    VALUES (fill_shard_batch.source, fill_shard_batch.shard_column, pg_catalog.pg_relation_filenode(fill_shard_batch.source),
        -- Counted now, when every later row has its shard from the trigger.
        pg_catalog.pg_relation_size(fill_shard_batch.source) / pg_catalog.current_setting('block_size')::bigint)
    -- In another file the rows stand elsewhere, so it begins again, and passes over what is filled.
    ON CONFLICT ON CONSTRAINT shard_backfill_key DO UPDATE
    SET file_node = EXCLUDED.file_node, blocks = EXCLUDED.blocks, next_block = 0, pass = 1, rows_skipped = 0
    WHERE b.file_node <> EXCLUDED.file_node;
    -- Two sessions that backfill one table take turns.
    SELECT b.* INTO STRICT progress FROM lanes.shard_backfill AS b
    WHERE b.source = fill_shard_batch.source AND b.shard_column = fill_shard_batch.shard_column FOR UPDATE;

    IF progress.next_block >= progress.blocks AND progress.pass = 1 AND progress.rows_skipped > 0 THEN
        progress.next_block := 0;
        progress.pass := 2;
    ELSIF progress.next_block >= progress.blocks THEN
        RETURN true;
    END IF;

    window_blocks := GREATEST(1, fill_shard_batch.batch / rows_per_block);
    first_row := pg_catalog.format('(%s,0)', progress.next_block)::tid;
    end_row := pg_catalog.format('(%s,0)', LEAST(progress.next_block + window_blocks, progress.blocks))::tid;
    -- In the first pass rows that somebody has locked are passed over: who waits while it holds locks of its own can be
    -- part of a deadlock. In the second pass one row is waited for at a time, with nothing else locked.
    row_limit := CASE progress.pass WHEN 1 THEN fill_shard_batch.batch ELSE 1 END;
    EXECUTE pg_catalog.format(
        'SELECT pg_catalog.array_agg(l.ctid) FROM (SELECT t.ctid FROM %s AS t '
        'WHERE t.ctid >= $1 AND t.ctid < $2 AND t.%I IS NULL LIMIT $3 FOR NO KEY UPDATE%s) AS l',
        fill_shard_batch.source, fill_shard_batch.shard_column, CASE progress.pass WHEN 1 THEN ' SKIP LOCKED' ELSE '' END)
    INTO places USING first_row, end_row, row_limit;
    IF places IS NOT NULL THEN
        EXECUTE pg_catalog.format('UPDATE %1$s AS t SET %2$I = @extschema@.shard(t.%3$I, %4$s) WHERE t.ctid = ANY ($1)',
            fill_shard_batch.source, fill_shard_batch.shard_column, present.key, present.shards)
        USING places;
        GET DIAGNOSTICS filled = ROW_COUNT;
    END IF;
    -- A batch that was full may have left some of its window.
    IF COALESCE(pg_catalog.cardinality(places), 0) < row_limit THEN
        IF progress.pass = 1 THEN
            EXECUTE pg_catalog.format('SELECT pg_catalog.count(*) FROM %s AS t WHERE t.ctid >= $1 AND t.ctid < $2 AND t.%I IS NULL',
                fill_shard_batch.source, fill_shard_batch.shard_column)
            INTO waiting USING first_row, end_row;
        END IF;
        progress.next_block := LEAST(progress.next_block + window_blocks, progress.blocks);
    END IF;
    UPDATE lanes.shard_backfill AS b
    SET next_block = progress.next_block, pass = progress.pass, rows_filled = b.rows_filled + filled,
        rows_skipped = b.rows_skipped + waiting, moved_at = pg_catalog.clock_timestamp()
    WHERE b.source = fill_shard_batch.source AND b.shard_column = fill_shard_batch.shard_column;
    RETURN false;
END
$$;
COMMENT ON FUNCTION lanes.fill_shard_batch(regclass, name, int) IS
    'Fills the shard column of at most batch older rows; true once all have it. A part of backfill_shard_column';
REVOKE ALL ON FUNCTION lanes.fill_shard_batch(regclass, name, int) FROM PUBLIC;

CREATE FUNCTION lanes.check_shard_column(source regclass, shard_column name) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    longest_wait CONSTANT interval := '2 s'::interval;
    present lanes.shard_columns := lanes.find_shard_column(check_shard_column.source, check_shard_column.shard_column);
BEGIN
    RETURN CASE present.state
        WHEN 'ready' THEN true
        WHEN 'checked' THEN lanes.run_with_lock_timeout(
            -- Takes the check's word, so it reads no row.
            pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', present.source, present.shard_column), longest_wait)
        WHEN 'filled' THEN lanes.run_with_lock_timeout(
            pg_catalog.format('ALTER TABLE %s VALIDATE CONSTRAINT %I', present.source, present.trigger_name), longest_wait)
        ELSE lanes.run_with_lock_timeout(
            pg_catalog.format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (%I IS NOT NULL AND %I = @extschema@.shard(%I, %s)) NOT VALID',
                present.source, present.trigger_name, present.shard_column, present.shard_column, present.key, present.shards),
            longest_wait)
    END;
END
$$;
COMMENT ON FUNCTION lanes.check_shard_column(regclass, name) IS
    'Takes the next step from a filled shard column to a checked one that is NOT NULL; false if a lock was not free in time. A part of backfill_shard_column';
REVOKE ALL ON FUNCTION lanes.check_shard_column(regclass, name) FROM PUBLIC;

-- Commits after each step, so it can have no SET clause: the path is set again after every COMMIT, and every name is
-- qualified. The first COMMIT makes it fail inside a transaction block, before it has done anything.
CREATE PROCEDURE lanes.backfill_shard_column(source regclass, batch int DEFAULT 1000, shard_column name DEFAULT 'shard_id')
    LANGUAGE plpgsql SECURITY INVOKER
AS $$
DECLARE
    most_tries CONSTANT int := 30;
    present lanes.shard_columns;
    done    boolean := false;
    tenth   bigint := 0;
    tries   int := 0;
    state_before text;
BEGIN
    COMMIT;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF backfill_shard_column.batch IS NULL OR backfill_shard_column.batch NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('batch must be from 1 to 1000000, not %s', COALESCE(backfill_shard_column.batch::pg_catalog.text, 'null')),
            HINT = 'It is how many rows are filled in one transaction.';
    END IF;
    present := lanes.find_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);

    WHILE NOT done AND present.state IN ('added', 'filling') LOOP
        done := lanes.fill_shard_batch(backfill_shard_column.source, backfill_shard_column.shard_column, backfill_shard_column.batch);
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        present := lanes.find_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);
        IF present.blocks > 0 AND present.blocks_done * 10 / present.blocks > tenth THEN
            tenth := present.blocks_done * 10 / present.blocks;
            RAISE NOTICE '%: % of % blocks seen, % rows filled', present.source, present.blocks_done, present.blocks, present.rows_filled;
        END IF;
    END LOOP;

    WHILE present.state <> 'ready' LOOP
        state_before := present.state;
        done := lanes.check_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        present := lanes.find_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);
        IF done THEN
            tries := 0;
            IF present.state NOT IN (state_before, 'ready') THEN
                RAISE NOTICE '%: shard column "%" is %', present.source, present.shard_column, present.state;
            END IF;
        ELSIF tries >= most_tries THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = pg_catalog.format('could not lock table %s in %s tries', present.source, tries),
                HINT = 'Some transaction uses it for long. Call lanes.backfill_shard_column again later: it goes on here.';
        ELSE
            tries := tries + 1;
            -- Lets those go first who queue for the table.
            PERFORM pg_catalog.pg_sleep(0.2);
        END IF;
    END LOOP;
    RAISE NOTICE USING
        MESSAGE = pg_catalog.format('%s: shard column "%s" is ready', present.source, present.shard_column),
        HINT = pg_catalog.format('To page over it, run: CREATE INDEX CONCURRENTLY ON %s (%I, ...) with the columns you sort by.',
            present.source, present.shard_column);
END
$$;
COMMENT ON PROCEDURE lanes.backfill_shard_column(regclass, int, name) IS
    'Fills a shard column in older rows, batch rows a transaction, then checks it and sets it NOT NULL. Cut off at any point, it goes on when called again';
REVOKE ALL ON PROCEDURE lanes.backfill_shard_column(regclass, int, name) FROM PUBLIC;

CREATE FUNCTION lanes.drop_shard_column(source regclass, shard_column name DEFAULT 'shard_id', lock_timeout interval DEFAULT '2 s')
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present lanes.shard_columns := lanes.find_shard_column(drop_shard_column.source, drop_shard_column.shard_column);
BEGIN
    IF drop_shard_column.lock_timeout IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'lock_timeout must not be null';
    END IF;
    IF NOT lanes.run_with_lock_timeout(pg_catalog.format(
        'DROP TRIGGER %2$I ON %1$s; ALTER TABLE %1$s DROP CONSTRAINT IF EXISTS %2$I, DROP COLUMN IF EXISTS %3$I',
        present.source, present.trigger_name, present.shard_column), drop_shard_column.lock_timeout)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'lock_not_available',
            MESSAGE = pg_catalog.format('could not lock table %s within %s', present.source, drop_shard_column.lock_timeout),
            HINT = 'Some transaction uses it for longer. Try again when it has ended, or pass a longer lock_timeout, during which everybody else waits.';
    END IF;
    DELETE FROM lanes.shard_backfill AS b
    WHERE b.source = drop_shard_column.source AND b.shard_column = drop_shard_column.shard_column;
END
$$;
COMMENT ON FUNCTION lanes.drop_shard_column(regclass, name, interval) IS
    'Takes back lanes.add_shard_column at any point: trigger, check, column and the indexes on it. An error if a view needs the column';
REVOKE ALL ON FUNCTION lanes.drop_shard_column(regclass, name, interval) FROM PUBLIC;

-- How evenly rows and writes are spread over the row shards of a table.

CREATE FUNCTION lanes.skew(source regclass, shard_column name DEFAULT 'shard_id', shards int DEFAULT NULL)
    RETURNS TABLE (shard int, "rows" bigint, writes bigint, share numeric, verdict text)
    STABLE PARALLEL SAFE ROWS 16 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- What is a shard's share is a matter of chance, so only what chance cannot explain is called hot: this many times
    -- the share, and this many standard deviations above it.
    hot_factor     CONSTANT numeric := 2;
    hot_deviations CONSTANT numeric := 5;
    -- A key with this many writes a shard would have rows in several shards if anything spread them.
    busy_writes    CONSTANT int := 8;
    shard_count int := skew.shards;
    is_counter  boolean;
    parts       record;
    one_row     boolean := false;
BEGIN
    IF skew.source IS NULL OR skew.shard_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'source and shard_column must not be null';
    ELSIF skew.shards < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('number of shards must be at least 1, not %s', skew.shards);
    ELSIF NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = skew.source AND a.attname = skew.shard_column AND a.attnum > 0 AND NOT a.attisdropped)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_column',
            MESSAGE = pg_catalog.format('column "%s" of relation %s does not exist', skew.shard_column, skew.source),
            HINT = 'Pass the table and the name of the column that holds its row shard.';
    END IF;

    is_counter := EXISTS (
        SELECT FROM pg_catalog.pg_constraint AS k
        WHERE k.conrelid = skew.source AND k.contype = 'c' AND k.conname = 'shard_id_range');
    IF is_counter THEN
        parts := lanes.counter_parts(skew.source);
        shard_count := COALESCE(shard_count, parts.shards);
        EXECUTE pg_catalog.format(
            'SELECT COALESCE(pg_catalog.bool_and(k.is_single), false) FROM ('
            'SELECT pg_catalog.count(*) = 1 AS is_single FROM %s AS c GROUP BY %s HAVING pg_catalog.sum(c.bumps) >= $1) AS k',
            skew.source,
            (SELECT pg_catalog.string_agg(pg_catalog.format('c.%I', n.name), ', ') FROM pg_catalog.unnest(parts.keys) AS n (name)))
        INTO one_row USING shard_count * busy_writes;
        one_row := one_row AND shard_count > 1;
    END IF;

    shard_count := COALESCE(shard_count, (
        SELECT c.shards FROM lanes.shard_columns AS c WHERE c.source = skew.source AND c.shard_column = skew.shard_column));

    RETURN QUERY EXECUTE pg_catalog.format($template$
WITH found AS (
    SELECT c.%1$I::int AS shard, pg_catalog.count(*) AS rows, %3$s AS writes FROM %2$s AS c WHERE c.%1$I IS NOT NULL GROUP BY 1
), listed AS (
    SELECT n.shard, COALESCE(f.rows, 0) AS rows, CASE WHEN $2 THEN COALESCE(f.writes, 0) END AS writes
    FROM pg_catalog.generate_series(0, GREATEST($1, (SELECT pg_catalog.max(m.shard) + 1 FROM found AS m)) - 1) AS n (shard)
    LEFT JOIN found AS f ON f.shard = n.shard
), weighed AS (
    SELECT l.*, COALESCE(l.writes, l.rows)::numeric AS weight,
        pg_catalog.sum(COALESCE(l.writes, l.rows)) OVER () AS total,
        pg_catalog.sum(COALESCE(l.writes, l.rows)) OVER () / pg_catalog.count(*) OVER () AS fair
    FROM listed AS l
)
SELECT w.shard, w.rows, w.writes, pg_catalog.round(w.weight / NULLIF(w.total, 0), 4),
    CASE WHEN $3 THEN 'one row a key: what spreads the writes follows the key, or one session does them all'
        WHEN w.weight > w.fair * $4 AND w.weight - w.fair > $5 * pg_catalog.sqrt(w.fair)
            THEN pg_catalog.format('hot: %%s times its share; few values spread the writes, or one of them has most',
                pg_catalog.round(w.weight / w.fair, 1))
        WHEN w.rows = 0 THEN 'empty' ELSE 'even' END
FROM weighed AS w ORDER BY w.shard$template$,
        skew.shard_column, skew.source, CASE WHEN is_counter THEN 'pg_catalog.sum(c.bumps)::bigint' ELSE 'NULL::bigint' END)
    USING shard_count, is_counter, one_row, hot_factor, hot_deviations;
END
$$;
COMMENT ON FUNCTION lanes.skew(regclass, name, int) IS
    'Rows and (for sharded counters) writes of each row shard of a table, its share of them, and whether chance alone explains it';
