\echo Use "ALTER EXTENSION pg_lanes UPDATE TO '0.4.0'" to load this file. \quit

-- 0.3.0 to 0.4.0: maps of slots that change while lanes work, leases, batches behind a transaction pooler, tables of events
-- as logs; pages over row shards.

SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE lanes.log ADD COLUMN horizon_event_time timestamptz;
COMMENT ON COLUMN lanes.log.horizon_event_time IS 'Time of the event at the horizon, as its producer gave it';

ALTER TABLE lanes.projection ADD COLUMN slot_lanes int[], ADD COLUMN map_version bigint NOT NULL DEFAULT 1;
UPDATE lanes.projection AS p
SET slot_lanes = (SELECT pg_catalog.array_agg(s % p.lanes ORDER BY s) FROM pg_catalog.generate_series(0, p.slots - 1) AS s);
ALTER TABLE lanes.projection ALTER COLUMN slot_lanes SET NOT NULL, DROP CONSTRAINT projection_slots,
    ADD CONSTRAINT projection_slots CHECK (slots >= 1024),
    ADD CONSTRAINT projection_slot_lanes CHECK (pg_catalog.cardinality(slot_lanes) = slots);
COMMENT ON COLUMN lanes.projection.lanes IS 'Number of lanes that own slots: how many workers can work at once';
COMMENT ON COLUMN lanes.projection.slot_lanes IS 'The map: the lane of each slot, slot 0 first';
COMMENT ON COLUMN lanes.projection.map_version IS 'Raised by every change of the map: a batch that was gathered under another version is gathered again';

ALTER TABLE lanes.checkpoint ADD COLUMN tick bigint NOT NULL DEFAULT 0, ADD COLUMN event_time timestamptz,
    ADD COLUMN events bigint NOT NULL DEFAULT 0, ADD COLUMN stop_tick bigint, ADD COLUMN stop_position bigint,
    ADD COLUMN retired_at timestamptz, ADD COLUMN lease interval NOT NULL DEFAULT '30 s',
    ADD COLUMN taken_over boolean NOT NULL DEFAULT false, ADD COLUMN stopped_state text NOT NULL DEFAULT 'stopped',
    ADD COLUMN work_ms double precision NOT NULL DEFAULT 0,
    ADD CONSTRAINT checkpoint_tick CHECK (tick >= 0),
    ADD CONSTRAINT checkpoint_events CHECK (events >= 0),
    ADD CONSTRAINT checkpoint_stop CHECK ((stop_tick IS NULL) = (stop_position IS NULL)),
    ADD CONSTRAINT checkpoint_stopped_state CHECK (stopped_state IN ('stopped', 'backing_off', 'paused')),
    ADD CONSTRAINT checkpoint_work_ms CHECK (work_ms >= 0);
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

ALTER TABLE lanes.parked_event ADD COLUMN tick bigint NOT NULL DEFAULT 0;
-- What was left of projections that are gone.
DELETE FROM lanes.parked_event AS e WHERE NOT EXISTS (
    SELECT FROM lanes.parked_key AS k
    WHERE (k.projection, k.version, k.slot, k.key_hash) = (e.projection, e.version, e.slot, e.key_hash));
ALTER TABLE lanes.parked_event ADD CONSTRAINT parked_event_projection
    FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE;
COMMENT ON COLUMN lanes.parked_event.tick IS 'With position, the event''s place: the tick of an events table; 0 in a log of ingestd';

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

-- Functions with other arguments or columns than before: grants on the old ones end with them, and giving them here again
-- would hide them from pg_dump.
DO $step$
DECLARE
    lost record;
BEGIN
    FOR lost IN
        SELECT g.grantee, pg_catalog.string_agg('lanes.' || p.proname, ', ' ORDER BY p.proname) AS functions
        FROM pg_catalog.pg_proc AS p, pg_catalog.aclexplode(p.proacl) AS g
        WHERE p.oid = ANY (ARRAY[
            'lanes.claim(text, text, uuid)'::regprocedure,
            'lanes.begin_batch(text, int, bigint, uuid)'::regprocedure,
            'lanes.commit_batch(text, int, bigint, bigint, bigint)'::regprocedure,
            'lanes.park(text, int, bigint, int[], text[], bigint[], text[], text[], bigint[], text[], text[], text[], bigint)'::regprocedure,
            'lanes.parked_events(text, int, text, int)'::regprocedure,
            'lanes.unpark(text, int, bigint, int, text, bigint, text, text, bigint)'::regprocedure])
          AND g.grantee <> p.proowner
        GROUP BY g.grantee
    LOOP
        RAISE WARNING USING
            MESSAGE = pg_catalog.format('grants on functions %s end with their old versions', lost.functions),
            HINT = pg_catalog.format('Run GRANT EXECUTE ON FUNCTION %s TO %s; what else a worker needs now is in sql/README.md.',
                lost.functions, CASE WHEN lost.grantee = 0 THEN 'PUBLIC' ELSE lost.grantee::regrole::text END);
    END LOOP;
END
$step$;
DROP FUNCTION lanes.claim(text, text, uuid);
DROP FUNCTION lanes.begin_batch(text, int, bigint, uuid);
DROP FUNCTION lanes.commit_batch(text, int, bigint, bigint, bigint);
DROP FUNCTION lanes.park(text, int, bigint, int[], text[], bigint[], text[], text[], bigint[], text[], text[], text[], bigint);
DROP FUNCTION lanes.parked_events(text, int, text, int);
DROP FUNCTION lanes.unpark(text, int, bigint, int, text, bigint, text, text, bigint);

CREATE OR REPLACE FUNCTION lanes.define_in(definition jsonb, log_id uuid, schema name)
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
            HINT = 'Start ingestd and use ingestd apply, which registers its log, or make a table of events a log: lanes.register_log.';
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

        -- What orders the values of such a column is kept beside it, and is the position alone.
        IF checked.bucketed AND EXISTS (SELECT FROM lanes.events_table AS e WHERE e.log_id = this_log)
            AND (pg_catalog.jsonb_path_exists(checked.definition, '$.aggregates.*.*.op ? (@ == "set" || @ == "set_once")')
                OR EXISTS (SELECT FROM pg_catalog.jsonb_object_keys(checked.definition -> 'derive') AS derived (name)
                           WHERE derived.name <> ALL (checked.primary_key)))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'feature_not_supported',
                MESSAGE = pg_catalog.format('projection "%s" sets columns in rows of lanes, and reads an events table', checked.name),
                DETAIL = 'The events of an events table are ordered by tick and position, of which such rows keep the position alone.',
                HINT = 'Use count, add, min or max, or a primary key that contains the lane key and no lane().';
        END IF;

        -- Another session's uncommitted row of this name is waited for.
        INSERT INTO lanes.projection (name, version, log_id, definition, lanes, slots, target_table, slot_lanes)
        VALUES (checked.name, 1, this_log, checked.definition, checked.lanes, checked.slots, target,
            (SELECT pg_catalog.array_agg(s % checked.lanes ORDER BY s) FROM pg_catalog.generate_series(0, checked.slots - 1) AS s))
        ON CONFLICT ON CONSTRAINT projection_key DO NOTHING;

        IF FOUND THEN
            -- The ticks of an events table begin at 1; other logs have none.
            INSERT INTO lanes.checkpoint (projection, version, lane, log_id, tick)
            SELECT checked.name, 1, n, this_log,
                (SELECT pg_catalog.count(*) FROM lanes.events_table AS e WHERE e.log_id = this_log)
            FROM pg_catalog.generate_series(0, checked.lanes - 1) AS n;
            define_in.created := true;
        ELSE
            SELECT p.* INTO STRICT existing FROM lanes.projection AS p WHERE p.name = checked.name AND p.version = 1;
            SELECT pg_catalog.string_agg(COALESCE(old.key, new.key), ', ' ORDER BY COALESCE(old.key, new.key) COLLATE "C")
            INTO difference
            FROM pg_catalog.jsonb_each(existing.definition) AS old
            FULL JOIN pg_catalog.jsonb_each(checked.definition) AS new ON new.key = old.key
            WHERE old.value IS DISTINCT FROM new.value
              -- The document follows a resize, and one that does not undoes none.
              AND (COALESCE(old.key, new.key) <> 'lanes' OR checked.lanes <> existing.lanes)
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
                    HINT = CASE WHEN difference = 'These parts differ: lanes.'
                        THEN pg_catalog.format('The number of lanes changes while they work: SELECT lanes.resize(%L, %s).',
                            checked.name, checked.lanes)
                        ELSE 'The rows would have to be built anew: define it under another name. Only type, processing, checkpointing, retry, priority and indexes change in place.' END;
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

CREATE OR REPLACE FUNCTION lanes.lock_lane(projection text, lane int, epoch bigint) RETURNS lanes.checkpoint
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
            HINT = pg_catalog.format('It has %s lanes; lanes.status lists them.', defined.lanes);
    END IF;
    IF locked.epoch IS DISTINCT FROM lock_lane.epoch THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = pg_catalog.format('lane %s of projection "%s" is in epoch %s, not %s',
                locked.lane, lock_lane.projection, locked.epoch, COALESCE(lock_lane.epoch::text, 'null')),
            DETAIL = CASE
                WHEN locked.retired_at IS NOT NULL THEN 'It has no slots any more.'
                WHEN locked.owner IS NOT NULL THEN pg_catalog.format('Worker "%s" claimed it last.', locked.owner)
                ELSE 'It was released, or never claimed.' END,
            HINT = 'Drop the batch, release the lane, and claim a lane again.';
    END IF;
    -- The epoch alone does not tell the owner from somebody who read it, nor from a session that a pooler put in its place.
    IF locked.owner_process_id IS DISTINCT FROM pg_catalog.pg_backend_pid()
        OR locked.owner_started_at IS DISTINCT FROM lanes.session_started_at()
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = pg_catalog.format('lane %s of projection "%s" is not owned by this session',
                locked.lane, lock_lane.projection),
            DETAIL = CASE WHEN locked.owner IS NOT NULL
                THEN pg_catalog.format('Worker "%s" claimed it in the session of process %s.', locked.owner, locked.owner_process_id)
                ELSE 'Nobody owns it.' END,
            HINT = 'Apply the batches in the session that claimed the lane. Behind a transaction pooler, use lanes.claim_batch.';
    END IF;
    RETURN locked;
END
$$;
COMMENT ON FUNCTION lanes.lock_lane(text, int, bigint) IS
    'Locks the row of a lane and checks epoch and session: the fence that begin_batch, commit_batch and stop_lane share';

CREATE FUNCTION lanes.check_worker(defined lanes.projection, projection text, worker text, log_id uuid) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF COALESCE(check_worker.worker, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'worker must have a name',
            HINT = 'Pass a name that tells people which process holds the lane, for example host and process id.';
    END IF;
    -- Everybody can read an events table; the events of another log only its daemon.
    IF check_worker.log_id IS NULL AND EXISTS (
        SELECT FROM lanes.events_table AS e WHERE e.log_id = check_worker.defined.log_id)
    THEN
        RETURN;
    END IF;
    IF check_worker.log_id IS DISTINCT FROM check_worker.defined.log_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = CASE WHEN check_worker.log_id IS NULL
                THEN pg_catalog.format('projection "%s" reads log %s, and the worker named none',
                    check_worker.projection, check_worker.defined.log_id)
                ELSE pg_catalog.format('projection "%s" reads log %s, not %s',
                    check_worker.projection, check_worker.defined.log_id, check_worker.log_id) END,
            DETAIL = 'Only the daemon whose log it is can read its events.',
            HINT = 'Let the ingestd that holds this log work on the projection; it passes the id of its log.';
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.check_worker(lanes.projection, text, text, uuid) IS
    'Refuses a worker without a name, and one that cannot read the projection''s log. A part of claim';

CREATE FUNCTION lanes.lease_ran_out(lane lanes.checkpoint) RETURNS boolean
    VOLATILE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Without an owner the time counts from when the last one released it, or from the definition: who has the lock of
    -- such a lane is about to claim or to release it.
    RETURN pg_catalog.clock_timestamp() > lease_ran_out.lane.lease + COALESCE(GREATEST(
        lease_ran_out.lane.claimed_at, lease_ran_out.lane.moved_at, lease_ran_out.lane.released_at,
        (SELECT w.heartbeat_at FROM lanes.worker AS w
         WHERE w.worker = lease_ran_out.lane.owner AND w.log_id = lease_ran_out.lane.log_id
           AND w.process_id = lease_ran_out.lane.owner_process_id
           AND w.started_at = lease_ran_out.lane.owner_started_at)),
        (SELECT p.defined_at FROM lanes.projection AS p
         WHERE p.name = lease_ran_out.lane.projection AND p.version = lease_ran_out.lane.version));
END
$$;
COMMENT ON FUNCTION lanes.lease_ran_out(lanes.checkpoint) IS
    'Whether there was no sign of life of a lane''s owner for as long as its lease: no claim, no batch, no heartbeat, no release. Then whoever holds its lock keeps nobody out';

CREATE FUNCTION lanes.owner_is_gone(lane lanes.checkpoint) RETURNS boolean
    VOLATILE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity AS a
        -- When a session of another role began is not told to everybody, and then the process has to do.
        WHERE a.pid = owner_is_gone.lane.owner_process_id
          AND COALESCE(a.backend_start, owner_is_gone.lane.owner_started_at) = owner_is_gone.lane.owner_started_at);
END
$$;
COMMENT ON FUNCTION lanes.owner_is_gone(lanes.checkpoint) IS
    'Whether the session that owns a lane has ended, or there is none. Asked where the lane''s lock does not tell, because the owner took the lane in spite of it';

CREATE FUNCTION lanes.end_session(lane lanes.checkpoint) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Only one that does nothing: a session that is busy with another lane's batch meets the new epoch soon enough.
    PERFORM pg_catalog.pg_terminate_backend(a.pid)
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.pid = end_session.lane.owner_process_id AND a.backend_start = end_session.lane.owner_started_at
      AND a.state = 'idle' AND a.state_change < pg_catalog.clock_timestamp() - end_session.lane.lease;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;
COMMENT ON FUNCTION lanes.end_session(lanes.checkpoint) IS
    'Ends the session of a lane''s owner whose lease ran out, where the role may and the session idles. A part of claim';
REVOKE ALL ON FUNCTION lanes.end_session(lanes.checkpoint) FROM PUBLIC;

CREATE FUNCTION lanes.take_lane(lane lanes.checkpoint, worker text, lease interval, taken_over boolean) RETURNS lanes.checkpoint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken lanes.checkpoint;
BEGIN
    UPDATE lanes.checkpoint AS c
    SET epoch = c.epoch + 1,
        owner = take_lane.worker,
        owner_process_id = pg_catalog.pg_backend_pid(),
        owner_application = NULLIF(pg_catalog.current_setting('application_name'), ''),
        owner_address = pg_catalog.inet_client_addr(),
        owner_started_at = lanes.session_started_at(),
        claimed_at = pg_catalog.clock_timestamp(),
        released_at = NULL,
        stopped_at = NULL,
        stopped_reason = NULL,
        lease = take_lane.lease,
        taken_over = take_lane.taken_over
    WHERE c.projection = take_lane.lane.projection AND c.version = take_lane.lane.version AND c.lane = take_lane.lane.lane
    RETURNING c.* INTO STRICT taken;
    RETURN taken;
END
$$;
COMMENT ON FUNCTION lanes.take_lane(lanes.checkpoint, text, interval, boolean) IS
    'Raises the epoch of a lane and writes who owns it now. A part of claim';
REVOKE ALL ON FUNCTION lanes.take_lane(lanes.checkpoint, text, interval, boolean) FROM PUBLIC;

CREATE FUNCTION lanes.claim(projection text, worker text, log_id uuid DEFAULT NULL, lease interval DEFAULT '30 s')
    RETURNS TABLE (lane int, epoch bigint, tick bigint, "position" bigint)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined   lanes.projection := lanes.find_projection(claim.projection);
    candidate lanes.checkpoint;
    taken     lanes.checkpoint;
    has_lock  boolean;
BEGIN
    PERFORM lanes.require_read_committed('claim a lane');
    PERFORM lanes.check_worker(defined, claim.projection, claim.worker, claim.log_id);
    IF claim.lease IS NULL OR claim.lease < interval '1 s' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('lease must be at least 1 s, not %s', COALESCE(claim.lease::text, 'null')),
            HINT = 'After so long without a batch or a call of lanes.heartbeat, others may take the lane.';
    END IF;
    -- A transaction pooler sets the name of its client's application with SET; only a client's own connection brings it.
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_settings AS s WHERE s.name = 'application_name' AND s.source = 'client')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'cannot tell that this session is the worker''s own',
            DETAIL = 'The connection did not bring an application_name, as connections of a transaction pooler do not; there, a lane''s lock would stay with a session that is somebody else''s next.',
            HINT = 'Behind a transaction pooler, use lanes.claim_batch. On a connection of your own, put application_name into the connection string, and RESET it if it was SET since.';
    END IF;

    -- Whose lane retires with the change learns of it by an error in begin_batch, which takes the change back.
    IF COALESCE(pg_catalog.current_setting('pg_lanes.batch', true), '') = '' THEN
        PERFORM lanes.finish_reshaping(claim.projection);
    END IF;
    FOR candidate IN
        SELECT c.*
        FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.retired_at IS NULL
        -- The last sign of life: the lane longest without an owner comes first.
        ORDER BY GREATEST(defined.defined_at, c.claimed_at, c.moved_at, c.released_at), c.lane
    LOOP
        has_lock := lanes.take_lane_lock(claim.projection, candidate.lane);
        CONTINUE WHEN NOT has_lock AND (NOT lanes.lease_ran_out(candidate)
            OR candidate.owner_process_id = pg_catalog.pg_backend_pid());
        IF has_lock THEN
            -- Waits for a batch that is still running under an older epoch.
            SELECT c.* INTO taken
            FROM lanes.checkpoint AS c
            WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = candidate.lane
            FOR UPDATE;
            -- The projection may be gone meanwhile.
            IF NOT FOUND THEN
                PERFORM lanes.give_up_lane_lock(claim.projection, candidate.lane);
                CONTINUE;
            END IF;
            candidate := taken;
        ELSE
            -- Who has the row locked is alive, whatever its lease says.
            SELECT c.* INTO candidate
            FROM lanes.checkpoint AS c
            WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = candidate.lane
            FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND OR NOT lanes.lease_ran_out(candidate);
        END IF;
        -- Meanwhile it may have lost its slots, or somebody has it who took it in spite of a lock.
        IF candidate.retired_at IS NOT NULL
            OR (has_lock AND candidate.taken_over AND NOT (lanes.lease_ran_out(candidate) OR lanes.owner_is_gone(candidate)))
        THEN
            PERFORM lanes.give_up_lane_lock(claim.projection, candidate.lane);
            CONTINUE;
        END IF;
        IF NOT has_lock THEN
            PERFORM lanes.end_session(candidate);
        END IF;
        taken := lanes.take_lane(candidate, claim.worker, claim.lease, NOT has_lock);
        claim.lane := taken.lane;
        claim.epoch := taken.epoch;
        claim.tick := taken.tick;
        claim."position" := taken."position";
        RETURN NEXT;
        RETURN;
    END LOOP;
END
$$;
COMMENT ON FUNCTION lanes.claim(text, text, uuid, interval) IS
    'Takes a free lane of a projection for this session, the one longest without an owner first, or one whose owner gave no sign of life for its lease; no row if there is none. The session that claims must be the one that applies the batches';
REVOKE ALL ON FUNCTION lanes.claim(text, text, uuid, interval) FROM PUBLIC;

CREATE OR REPLACE FUNCTION lanes.release(projection text, lane int, epoch bigint) RETURNS boolean
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
        released_at = pg_catalog.clock_timestamp(),
        taken_over = false
    WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = release.lane
      AND c.epoch = release.epoch
      AND c.owner_process_id = pg_catalog.pg_backend_pid()
      -- Process ids come round again: the session that claimed is meant.
      AND c.owner_started_at = lanes.session_started_at();
    IF FOUND THEN
        PERFORM lanes.give_up_lane_lock(release.projection, release.lane);
        RETURN true;
    END IF;
    -- A lock that is left of an ownership that somebody else ended.
    IF NOT EXISTS (
        SELECT FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = release.lane
          AND c.owner_process_id = pg_catalog.pg_backend_pid() AND c.owner_started_at = lanes.session_started_at())
    THEN
        PERFORM lanes.give_up_lane_lock(release.projection, release.lane);
    END IF;
    RETURN false;
END
$$;
COMMENT ON FUNCTION lanes.release(text, int, bigint) IS
    'Gives a lane up when the transaction commits; false if this session does not own it in that epoch: then only a lock is given up that is left of an ownership which somebody else ended';

CREATE FUNCTION lanes.heartbeat(worker text, log_id uuid, alive_for interval DEFAULT '30 s') RETURNS int
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    alive int;
    owned lanes.checkpoint;
BEGIN
    IF COALESCE(heartbeat.worker, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'worker must have a name',
            HINT = 'Pass the name with which the worker claims lanes.';
    END IF;
    INSERT INTO lanes.worker AS w (worker, log_id, process_id, application, address, started_at, heartbeat_at)
    VALUES (heartbeat.worker, heartbeat.log_id, pg_catalog.pg_backend_pid(),
        NULLIF(pg_catalog.current_setting('application_name'), ''), pg_catalog.inet_client_addr(),
        lanes.session_started_at(), pg_catalog.clock_timestamp())
    ON CONFLICT ON CONSTRAINT worker_key DO UPDATE
    SET process_id = EXCLUDED.process_id, application = EXCLUDED.application, address = EXCLUDED.address,
        started_at = EXCLUDED.started_at, heartbeat_at = EXCLUDED.heartbeat_at;
    DELETE FROM lanes.worker AS w
    WHERE w.ctid IN (
        SELECT d.ctid FROM lanes.worker AS d
        WHERE d.heartbeat_at < pg_catalog.clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED);
    -- A lane that was taken in spite of a lock: the lock may be free by now.
    FOR owned IN
        SELECT c.* FROM lanes.checkpoint AS c
        WHERE c.log_id = heartbeat.log_id AND c.taken_over
          AND c.owner_process_id = pg_catalog.pg_backend_pid() AND c.owner_started_at = lanes.session_started_at()
        FOR UPDATE SKIP LOCKED
    LOOP
        IF lanes.take_lane_lock(owned.projection || '~' || owned.version, owned.lane) THEN
            UPDATE lanes.checkpoint AS c SET taken_over = false
            WHERE c.projection = owned.projection AND c.version = owned.version AND c.lane = owned.lane;
        END IF;
    END LOOP;
    SELECT pg_catalog.count(*) INTO alive
    FROM lanes.worker AS w
    WHERE w.log_id = heartbeat.log_id AND w.heartbeat_at > pg_catalog.clock_timestamp() - heartbeat.alive_for;
    RETURN alive;
END
$$;
COMMENT ON FUNCTION lanes.heartbeat(text, uuid, interval) IS
    'Tells that a worker is alive, so that the leases of its lanes do not run out while they have nothing to do; returns how many workers of that log have told so within alive_for. To be called in the session that owns the lanes';
REVOKE ALL ON FUNCTION lanes.heartbeat(text, uuid, interval) FROM PUBLIC;

CREATE FUNCTION lanes.goodbye(worker text, log_id uuid) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM lanes.worker AS w WHERE w.worker = goodbye.worker AND w.log_id = goodbye.log_id;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION lanes.goodbye(text, uuid) IS
    'Takes back what lanes.heartbeat told, so that others share the lanes at once; false if it told nothing';
REVOKE ALL ON FUNCTION lanes.goodbye(text, uuid) FROM PUBLIC;

CREATE FUNCTION lanes.open_batch(projection text, lane lanes.checkpoint) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- How long a worker may leave the transaction idle, and with it the lane locked.
    longest_idle CONSTANT text := '60s';
    idle    interval := pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval;
    running text := NULLIF(pg_catalog.current_setting('pg_lanes.batch', true), '');
    batch   text := pg_catalog.format('%s in epoch %s',
        @extschema@.checkpoint_name(open_batch.projection, open_batch.lane.lane), open_batch.lane.epoch);
BEGIN
    IF running <> batch THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('the batch of %s is not committed', running),
            HINT = 'Call lanes.commit_batch first, or roll back.';
    END IF;
    IF idle = interval '0' OR idle > longest_idle::interval THEN
        PERFORM pg_catalog.set_config('idle_in_transaction_session_timeout', longest_idle, true);
    END IF;
    PERFORM pg_catalog.set_config('pg_lanes.batch', batch, true);
END
$$;
COMMENT ON FUNCTION lanes.open_batch(text, lanes.checkpoint) IS
    'Notes that this transaction is a batch of a lane, and bounds how long it may idle. A part of begin_batch and claim_batch';
REVOKE ALL ON FUNCTION lanes.open_batch(text, lanes.checkpoint) FROM PUBLIC;

-- Only there does each statement after the lock see what the lock's last holder committed.
CREATE FUNCTION lanes.require_read_committed(what text) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('cannot %s in isolation level %s',
                require_read_committed.what, pg_catalog.current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.require_read_committed(text) IS
    'Refuses transactions that would not see what another one committed while they waited for its lock';

CREATE FUNCTION lanes.begin_batch(projection text, lane int, epoch bigint, log_id uuid)
    RETURNS TABLE (tick bigint, "position" bigint, target_table text, map_version bigint, stop_tick bigint,
                   stop_position bigint)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection;
    locked  lanes.checkpoint;
BEGIN
    PERFORM lanes.require_read_committed('begin a batch');
    -- Before any lane is locked here: it locks several.
    IF COALESCE(pg_catalog.current_setting('pg_lanes.batch', true), '') = '' THEN
        PERFORM lanes.finish_reshaping(begin_batch.projection);
    END IF;
    locked := lanes.lock_lane(begin_batch.projection, begin_batch.lane, begin_batch.epoch);
    IF locked.log_id IS DISTINCT FROM begin_batch.log_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('lane %s of projection "%s" stands in log %s, not in %s',
                locked.lane, begin_batch.projection, locked.log_id, COALESCE(begin_batch.log_id::text, 'null')),
            HINT = 'A position means something in its own log only: send events of that log.';
    END IF;
    PERFORM lanes.open_batch(begin_batch.projection, locked);
    IF locked.taken_over AND lanes.take_lane_lock(begin_batch.projection, locked.lane) THEN
        UPDATE lanes.checkpoint AS c SET taken_over = false
        WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
    END IF;

    -- After the lock: a change of the map waits for it.
    defined := lanes.find_projection(begin_batch.projection);
    begin_batch.tick := locked.tick;
    begin_batch."position" := locked."position";
    begin_batch.target_table := defined.target_table;
    begin_batch.map_version := defined.map_version;
    begin_batch.stop_tick := locked.stop_tick;
    begin_batch.stop_position := locked.stop_position;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION lanes.begin_batch(text, int, bigint, uuid) IS
    'First statement of a batch''s transaction: locks the lane, checks epoch, session and log, and returns the checkpoint''s place, the only table that the batch may write to, the version of the map that tells which keys are the lane''s, and the place that the batch must not pass (null: none)';
REVOKE ALL ON FUNCTION lanes.begin_batch(text, int, bigint, uuid) FROM PUBLIC;

CREATE FUNCTION lanes.claim_batch(projection text, worker text, log_id uuid DEFAULT NULL)
    RETURNS TABLE (lane int, epoch bigint, tick bigint, "position" bigint, target_table text, map_version bigint,
                   stop_tick bigint, stop_position bigint)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined   lanes.projection := lanes.find_projection(claim_batch.projection);
    newest    lanes.tick;
    candidate lanes.checkpoint;
    has_lock  boolean;
BEGIN
    PERFORM lanes.require_read_committed('begin a batch');
    PERFORM lanes.check_worker(defined, claim_batch.projection, claim_batch.worker, claim_batch.log_id);
    PERFORM lanes.finish_reshaping(claim_batch.projection);
    SELECT t.* INTO newest FROM lanes.tick AS t WHERE t.log_id = defined.log_id ORDER BY t.tick DESC LIMIT 1;

    FOR candidate IN
        SELECT c.*
        FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.retired_at IS NULL
          -- There is something to do: not all of an events table's last tick is accounted for, and no stop is reached.
          AND (c.tick = 0 OR (c.tick, c."position") < (newest.tick, newest.last_position))
          AND (c.stop_tick IS NULL OR (c.tick, c."position") < (c.stop_tick, c.stop_position))
          -- The lock would not keep this session from a lane that it owns in the session form. (One that it took here, and
          -- whose batch was ended without commit_batch, it has not locked.)
          AND ((c.owner_process_id, c.owner_started_at) IS DISTINCT FROM (pg_catalog.pg_backend_pid(), lanes.session_started_at())
               OR (NOT c.taken_over AND NOT EXISTS (
                   SELECT FROM pg_catalog.pg_locks AS l
                   WHERE l.locktype = 'advisory' AND l.pid = pg_catalog.pg_backend_pid() AND l.objsubid = 1 AND l.granted
                     AND (l.classid::bigint << 32 | l.objid::bigint) = lanes.lock_key(claim_batch.projection, c.lane))))
        ORDER BY GREATEST(defined.defined_at, c.claimed_at, c.moved_at, c.released_at), c.lane
    LOOP
        has_lock := pg_catalog.pg_try_advisory_xact_lock(lanes.lock_key(claim_batch.projection, candidate.lane));
        CONTINUE WHEN NOT has_lock AND NOT lanes.lease_ran_out(candidate);
        SELECT c.* INTO candidate
        FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = candidate.lane
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND OR candidate.retired_at IS NOT NULL
            OR (NOT lanes.lease_ran_out(candidate)
                AND (NOT has_lock OR (candidate.taken_over AND NOT lanes.owner_is_gone(candidate))));
        IF NOT has_lock THEN
            PERFORM lanes.end_session(candidate);
        END IF;
        candidate := lanes.take_lane(candidate, claim_batch.worker, candidate.lease, false);
        PERFORM lanes.open_batch(claim_batch.projection, candidate);
        -- Owned until the transaction ends, and no longer.
        PERFORM pg_catalog.set_config('pg_lanes.claimed_batch', pg_catalog.current_setting('pg_lanes.batch'), true);

        -- After the lock: a change of the map waits for it.
        defined := lanes.find_projection(claim_batch.projection);
        claim_batch.lane := candidate.lane;
        claim_batch.epoch := candidate.epoch;
        claim_batch.tick := candidate.tick;
        claim_batch."position" := candidate."position";
        claim_batch.target_table := defined.target_table;
        claim_batch.map_version := defined.map_version;
        claim_batch.stop_tick := candidate.stop_tick;
        claim_batch.stop_position := candidate.stop_position;
        RETURN NEXT;
        RETURN;
    END LOOP;
END
$$;
COMMENT ON FUNCTION lanes.claim_batch(text, text, uuid) IS
    'First statement of a batch''s transaction behind a transaction pooler: takes a free lane that has something to do, for this transaction alone, and returns what claim and begin_batch return; no row if there is none. commit_batch gives the lane back';
REVOKE ALL ON FUNCTION lanes.claim_batch(text, text, uuid) FROM PUBLIC;

CREATE FUNCTION lanes.commit_batch(projection text, lane int, epoch bigint, "position" bigint DEFAULT NULL,
                                   skipped_null_key bigint DEFAULT 0, tick bigint DEFAULT 0,
                                   event_time timestamptz DEFAULT NULL, events bigint DEFAULT 0) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked  lanes.checkpoint := lanes.lock_lane(commit_batch.projection, commit_batch.lane, commit_batch.epoch);
    batch   text := pg_catalog.format('%s in epoch %s',
        @extschema@.checkpoint_name(commit_batch.projection, locked.lane), locked.epoch);
    scanned jsonb := NULLIF(pg_catalog.current_setting('pg_lanes.scanned', true), '')::jsonb;
    claimed boolean := COALESCE(pg_catalog.current_setting('pg_lanes.claimed_batch', true) = batch, false);
BEGIN
    IF pg_catalog.current_setting('pg_lanes.batch', true) IS DISTINCT FROM batch THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('no batch of %s was begun in this transaction', batch),
            HINT = 'Call lanes.begin_batch first, write the rows, then call lanes.commit_batch in the same transaction.';
    END IF;
    IF commit_batch."position" IS NULL THEN
        IF scanned IS NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'null_value_not_allowed',
                MESSAGE = 'position must not be null',
                DETAIL = 'Nothing was read with lanes.read_batch in this transaction, which would tell how far the batch goes.',
                HINT = 'Pass the position of the last event that the batch accounts for, or read the events with lanes.read_batch.';
        END IF;
        commit_batch.tick := (scanned -> 'tick')::bigint;
        commit_batch."position" := (scanned -> 'position')::bigint;
        commit_batch.skipped_null_key := commit_batch.skipped_null_key + (scanned -> 'skipped_null_key')::bigint;
        commit_batch.events := (scanned -> 'events')::bigint;
        commit_batch.event_time := COALESCE(commit_batch.event_time, (scanned ->> 'event_time')::timestamptz);
    END IF;
    IF (commit_batch.tick, commit_batch."position") < (locked.tick, locked."position") THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('position %s is below the checkpoint of lane %s of projection "%s", which is %s',
                lanes.place(commit_batch.tick, commit_batch."position"), locked.lane, commit_batch.projection,
                lanes.place(locked.tick, locked."position")),
            HINT = 'Events up to the checkpoint are applied: drop them from the batch.';
    ELSIF (commit_batch.tick, commit_batch."position") > (locked.stop_tick, locked.stop_position) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('position %s is past the place where lane %s of projection "%s" has to stop, which is %s',
                lanes.place(commit_batch.tick, commit_batch."position"), locked.lane, commit_batch.projection,
                lanes.place(locked.stop_tick, locked.stop_position)),
            DETAIL = 'A change of the map waits until the lanes it involves stand at one place.',
            HINT = 'Roll back, and leave out what lies past stop_position, which lanes.begin_batch returns.';
    END IF;
    IF commit_batch.skipped_null_key IS NULL OR commit_batch.skipped_null_key < 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('skipped_null_key must be at least 0, not %s',
                COALESCE(commit_batch.skipped_null_key::text, 'null')),
            HINT = 'Pass how many events of this batch had no lane key or no row key.';
    END IF;

    -- Beyond the place that the batch accounts for, what was read comes again, and with it what was put aside there.
    IF ((scanned -> 'tick')::bigint, (scanned -> 'position')::bigint) > (commit_batch.tick, commit_batch."position") THEN
        DELETE FROM lanes.parked_event AS e
        USING lanes.projection AS p
        WHERE p.name = locked.projection AND p.version = locked.version
          AND e.projection = locked.projection AND e.version = locked.version
          AND p.slot_lanes[e.slot + 1] = locked.lane
          AND (e.tick, e."position") > (commit_batch.tick, commit_batch."position");
        UPDATE lanes.skipped_event AS s
        SET event_type = NULL
        FROM pg_catalog.jsonb_to_recordset(scanned -> 'skips') AS e (tick bigint, "position" bigint)
        WHERE s.projection = locked.projection AND s.version = locked.version AND s."position" = e."position"
          AND (e.tick, e."position") > (commit_batch.tick, commit_batch."position");
    END IF;

    UPDATE lanes.checkpoint AS c
    SET tick = commit_batch.tick,
        "position" = commit_batch."position",
        skipped_null_key = c.skipped_null_key + commit_batch.skipped_null_key,
        event_time = COALESCE(commit_batch.event_time, c.event_time),
        events = c.events + GREATEST(commit_batch.events, 0),
        work_ms = c.work_ms + EXTRACT(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.transaction_timestamp()) * 1000,
        moved_at = pg_catalog.clock_timestamp(),
        stopped_at = NULL,
        stopped_reason = NULL,
        failed_position = NULL,
        owner = CASE WHEN NOT claimed THEN c.owner END,
        owner_process_id = CASE WHEN NOT claimed THEN c.owner_process_id END,
        owner_application = CASE WHEN NOT claimed THEN c.owner_application END,
        owner_address = CASE WHEN NOT claimed THEN c.owner_address END,
        owner_started_at = CASE WHEN NOT claimed THEN c.owner_started_at END,
        released_at = CASE WHEN claimed THEN pg_catalog.clock_timestamp() END
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
    PERFORM pg_catalog.set_config('pg_lanes.batch', '', true);
    PERFORM pg_catalog.set_config('pg_lanes.claimed_batch', '', true);
    PERFORM pg_catalog.set_config('pg_lanes.scanned', '', true);
END
$$;
COMMENT ON FUNCTION lanes.commit_batch(text, int, bigint, bigint, bigint, bigint, timestamptz, bigint) IS
    'Last statement of a batch''s transaction before COMMIT: moves the checkpoint to a place (position null: to what lanes.read_batch read in this transaction), adds to skipped_null_key and events, and gives back a lane that claim_batch took';
REVOKE ALL ON FUNCTION lanes.commit_batch(text, int, bigint, bigint, bigint, bigint, timestamptz, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.place(tick bigint, "position" bigint) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE WHEN place.tick > 0 THEN pg_catalog.format('%s of tick %s', place."position", place.tick)
        ELSE place."position"::text END;
END;
COMMENT ON FUNCTION lanes.place(bigint, bigint) IS 'A place in a log, in words';

CREATE OR REPLACE FUNCTION lanes.stop_lane(projection text, lane int, epoch bigint, reason text) RETURNS void
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
    SET stopped_at = pg_catalog.clock_timestamp(), stopped_reason = stop_lane.reason, stopped_state = 'stopped'
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
END
$$;
COMMENT ON FUNCTION lanes.stop_lane(text, int, bigint, text) IS
    'Records why a lane''s owner cannot go on, for lanes.status; the next batch or claim clears it';

CREATE FUNCTION lanes.hold_lane(projection text, lane int, epoch bigint, state text, reason text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(hold_lane.projection, hold_lane.lane, hold_lane.epoch);
BEGIN
    IF hold_lane.state IS NULL OR hold_lane.state NOT IN ('backing_off', 'paused') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('state must be backing_off or paused, not %s', COALESCE(hold_lane.state, 'null')),
            HINT = 'For a lane that does not go on by itself there is lanes.stop_lane.';
    END IF;
    IF COALESCE(hold_lane.reason, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'reason must not be empty',
            HINT = 'Say what the lane waits for: it is what people see in lanes.status.';
    END IF;
    UPDATE lanes.checkpoint AS c
    SET stopped_at = pg_catalog.clock_timestamp(), stopped_reason = hold_lane.reason, stopped_state = hold_lane.state
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
END
$$;
COMMENT ON FUNCTION lanes.hold_lane(text, int, bigint, text, text) IS
    'Records what a lane''s owner waits for before it goes on by itself: backing_off before the next try, or paused for others. The next batch or claim clears it';
REVOKE ALL ON FUNCTION lanes.hold_lane(text, int, bigint, text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION lanes.parked_keys(projection text, lane int)
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
    WHERE k.projection = defined.name AND k.version = defined.version AND defined.slot_lanes[k.slot + 1] = parked_keys.lane
    ORDER BY k.next_try_at NULLS LAST, k.slot, k.key;
END
$$;
COMMENT ON FUNCTION lanes.parked_keys(text, int) IS
    'The parked keys of a lane''s slots, and in how many milliseconds each is tried again (null: when it is asked for). After begin_batch in its transaction nobody else changes them';

CREATE FUNCTION lanes.park(projection text, lane int, epoch bigint, slots int[], keys text[], positions bigint[],
                           types text[], event_keys text[], times bigint[], payloads text[], sqlstates text[],
                           errors text[], retry_after_ms bigint, ticks bigint[] DEFAULT NULL) RETURNS bigint
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
    INSERT INTO lanes.parked_event
        (projection, version, slot, key_hash, tick, "position", event_type, event_key, event_ts, payload)
    SELECT locked.projection, locked.version, e.slot, pg_catalog.sha256(pg_catalog.convert_to(e.key, 'UTF8')),
        COALESCE(e.tick, 0), e."position", e.event_type, e.event_key, e.event_ts, e.payload
    FROM unnest(park.slots, park.keys, park.positions, park.types, park.event_keys, park.times, park.payloads,
        park.ticks) AS e (slot, key, "position", event_type, event_key, event_ts, payload, tick);
    SELECT pg_catalog.count(*) INTO parked
    FROM lanes.parked_event AS p
    WHERE p.projection = locked.projection AND p.version = locked.version;
    RETURN parked;
END
$$;
COMMENT ON FUNCTION lanes.park(text, int, bigint, int[], text[], bigint[], text[], text[], bigint[], text[], text[], text[], bigint, bigint[]) IS
    'Puts events aside in the transaction of a batch: one with an error parks its key, the others wait behind it. Returns how many events of the projection wait';
REVOKE ALL ON FUNCTION lanes.park(text, int, bigint, int[], text[], bigint[], text[], text[], bigint[], text[], text[], text[], bigint, bigint[]) FROM PUBLIC;

CREATE FUNCTION lanes.parked_events(projection text, slot int, key text, maximum int)
    RETURNS TABLE ("position" bigint, event_type text, event_key text, event_ts bigint, payload text, attempts int,
                   tick bigint)
    VOLATILE PARALLEL UNSAFE ROWS 100 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(parked_events.projection);
BEGIN
    RETURN QUERY
    SELECT p."position", p.event_type, p.event_key, p.event_ts, p.payload, k.attempts, p.tick
    FROM lanes.parked_key AS k
    JOIN lanes.parked_event AS p USING (projection, version, slot, key_hash)
    WHERE k.projection = defined.name AND k.version = defined.version AND k.slot = parked_events.slot
      AND k.key_hash = pg_catalog.sha256(pg_catalog.convert_to(parked_events.key, 'UTF8'))
    ORDER BY p.tick, p."position"
    LIMIT parked_events.maximum;
END
$$;
COMMENT ON FUNCTION lanes.parked_events(text, int, text, int) IS
    'The first events that wait of a parked key, in order, and how often the first has failed';
REVOKE ALL ON FUNCTION lanes.parked_events(text, int, text, int) FROM PUBLIC;

CREATE FUNCTION lanes.unpark(projection text, lane int, epoch bigint, slot int, key text, applied_to bigint,
                             sqlstate text DEFAULT NULL, error text DEFAULT NULL, retry_after_ms bigint DEFAULT NULL,
                             applied_to_tick bigint DEFAULT 0)
    RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(unpark.projection, unpark.lane, unpark.epoch);
    hash   bytea := pg_catalog.sha256(pg_catalog.convert_to(unpark.key, 'UTF8'));
    moved  bigint;
    asked  boolean;
BEGIN
    DELETE FROM lanes.parked_event AS p
    WHERE p.projection = locked.projection AND p.version = locked.version AND p.slot = unpark.slot
      -- (0: nothing was applied. After lanes.rebase the ticks of what waits are below 0.)
      AND p.key_hash = hash AND unpark.applied_to > 0
      AND (p.tick, p."position") <= (unpark.applied_to_tick, unpark.applied_to);
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
    -- lanes.retry was asked while the try was running, and means what there is after it.
    asked := EXISTS (
        SELECT FROM lanes.parked_key AS k
        WHERE k.projection = locked.projection AND k.version = locked.version AND k.slot = unpark.slot
          AND k.key_hash = hash AND k.attempts = 0 AND k.next_try_at > pg_catalog.transaction_timestamp());
    UPDATE lanes.parked_key AS k
    SET attempts = CASE WHEN unpark.error IS NULL OR asked THEN 0 WHEN moved > 0 THEN 1 ELSE k.attempts + 1 END,
        next_try_at = CASE WHEN unpark.error IS NULL OR asked THEN pg_catalog.clock_timestamp()
            ELSE pg_catalog.clock_timestamp() + unpark.retry_after_ms * interval '1 millisecond' END,
        sqlstate = COALESCE(unpark.sqlstate, k.sqlstate),
        error = COALESCE(unpark.error, k.error)
    WHERE k.projection = locked.projection AND k.version = locked.version AND k.slot = unpark.slot
      AND k.key_hash = hash;
    RETURN false;
END
$$;
COMMENT ON FUNCTION lanes.unpark(text, int, bigint, int, text, bigint, text, text, bigint, bigint) IS
    'After a retry, in its transaction: takes out the events of a parked key that were applied, and frees the key if that was all (true); else notes the failure of the next one and when it is tried again (retry_after_ms null: when asked for)';
REVOKE ALL ON FUNCTION lanes.unpark(text, int, bigint, int, text, bigint, text, text, bigint, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.plan_resize(slot_lanes int[], lanes int, modulo boolean) RETURNS int[]
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_resize_wrapper';
COMMENT ON FUNCTION lanes.plan_resize(int[], int, boolean) IS
    'The map with so many lanes that moves the fewest slots; with modulo the one in which lane_of(key, lanes) names the lane';

CREATE FUNCTION lanes.plan_split(slot_lanes int[], lane int, weights bigint[] DEFAULT NULL) RETURNS int[]
    IMMUTABLE PARALLEL SAFE COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_split_wrapper';
COMMENT ON FUNCTION lanes.plan_split(int[], int, bigint[]) IS
    'The map in which half of a lane''s slots (by weight, if given) are those of a new lane';

CREATE FUNCTION lanes.plan_merge(slot_lanes int[], keep int, gone int) RETURNS int[]
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_merge_wrapper';
COMMENT ON FUNCTION lanes.plan_merge(int[], int, int) IS 'The map in which one lane has the slots of two';

CREATE FUNCTION lanes.plan_move(slot_lanes int[], slots int[], lane int) RETURNS int[]
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_move_wrapper';
COMMENT ON FUNCTION lanes.plan_move(int[], int[], int) IS 'The map in which a lane has these slots too';

CREATE FUNCTION lanes.plan_isolate(slot_lanes int[], slot int) RETURNS int[]
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_isolate_wrapper';
COMMENT ON FUNCTION lanes.plan_isolate(int[], int) IS 'The map in which a slot is alone on a lane';

CREATE FUNCTION lanes.plan_change(before int[], after int[])
    RETURNS TABLE (moved int, involved int[], new_lanes int[], parents int[], retired int[])
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_change_wrapper';
COMMENT ON FUNCTION lanes.plan_change(int[], int[]) IS
    'What leads from one map to another: slots that move, lanes that must stand at one place first (none if lanes are only split), new lanes and where each begins, lanes without slots';

CREATE FUNCTION lanes.is_canonical(slot_lanes int[]) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE COST 100 LANGUAGE c AS 'MODULE_PATHNAME', 'is_canonical_wrapper';
COMMENT ON FUNCTION lanes.is_canonical(int[]) IS 'Whether lane_of(key, number of lanes) names the lane of a key';

CREATE FUNCTION lanes.lane_for(projection text, key text) RETURNS int
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(lane_for.projection);
BEGIN
    RETURN defined.slot_lanes[@extschema@.lane_of(lane_for.key, defined.slots) + 1];
END
$$;
COMMENT ON FUNCTION lanes.lane_for(text, text) IS
    'The lane that a key (the lane key, as text) belongs to now, whatever became of the map';

CREATE FUNCTION lanes.apply_map(defined lanes.projection, slot_lanes int[], stop_tick bigint DEFAULT NULL,
                                stop_position bigint DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    plan      record;
    new_slots int := pg_catalog.cardinality(apply_map.slot_lanes);
BEGIN
    SELECT p.* INTO STRICT plan FROM lanes.plan_change(apply_map.defined.slot_lanes, apply_map.slot_lanes) AS p;

    -- A lane number that comes back goes on with its epochs, so that nobody's old claim fits.
    INSERT INTO lanes.checkpoint AS c
        (projection, version, lane, log_id, epoch, tick, "position", event_time, released_at)
    SELECT apply_map.defined.name, apply_map.defined.version, n.lane, apply_map.defined.log_id, 0,
        COALESCE(apply_map.stop_tick, parent.tick), COALESCE(apply_map.stop_position, parent."position"),
        parent.event_time, pg_catalog.clock_timestamp()
    FROM unnest(plan.new_lanes, plan.parents) AS n (lane, parent)
    JOIN lanes.checkpoint AS parent
        ON (parent.projection, parent.version, parent.lane) = (apply_map.defined.name, apply_map.defined.version, n.parent)
    ON CONFLICT ON CONSTRAINT checkpoint_key DO UPDATE
    SET epoch = c.epoch + 1, tick = EXCLUDED.tick, "position" = EXCLUDED."position", event_time = EXCLUDED.event_time,
        released_at = EXCLUDED.released_at, retired_at = NULL, failed_position = NULL, stopped_at = NULL,
        stopped_reason = NULL;
    UPDATE lanes.checkpoint AS c
    SET epoch = c.epoch + 1, retired_at = pg_catalog.clock_timestamp(), released_at = pg_catalog.clock_timestamp(),
        owner = NULL, owner_process_id = NULL, owner_application = NULL, owner_address = NULL, owner_started_at = NULL,
        taken_over = false, failed_position = NULL, stopped_at = NULL, stopped_reason = NULL
    WHERE c.projection = apply_map.defined.name AND c.version = apply_map.defined.version
      AND c.lane = ANY (plan.retired);
    -- All rows that the change touches are written: who waits for one of them sees the new map after it.
    -- (The event at which a lane stands may be another's now.)
    UPDATE lanes.checkpoint AS c
    SET stop_tick = NULL, stop_position = NULL, failed_position = NULL
    WHERE c.projection = apply_map.defined.name AND c.version = apply_map.defined.version
      AND c.lane = ANY (plan.involved || plan.parents);

    -- Parked keys keep their slot, under its number among the new ones.
    IF new_slots <> apply_map.defined.slots THEN
        -- In the order in which lanes.retry locks them, too.
        PERFORM FROM lanes.parked_key AS k
        WHERE k.projection = apply_map.defined.name AND k.version = apply_map.defined.version
        ORDER BY k.key, k.key_hash FOR UPDATE;
        UPDATE lanes.parked_event AS e
        SET slot = @extschema@.lane_of(k.key, new_slots)
        FROM lanes.parked_key AS k
        WHERE k.projection = apply_map.defined.name AND k.version = apply_map.defined.version
          AND (e.projection, e.version, e.slot, e.key_hash) = (k.projection, k.version, k.slot, k.key_hash)
          AND k.slot = @extschema@.lane_of(k.key, apply_map.defined.slots);
        UPDATE lanes.parked_key AS k
        SET slot = @extschema@.lane_of(k.key, new_slots)
        WHERE k.projection = apply_map.defined.name AND k.version = apply_map.defined.version
          AND k.slot = @extschema@.lane_of(k.key, apply_map.defined.slots);
    END IF;
    UPDATE lanes.projection AS p
    SET slot_lanes = apply_map.slot_lanes,
        slots = new_slots,
        lanes = (SELECT pg_catalog.count(DISTINCT s) FROM unnest(apply_map.slot_lanes) AS s),
        map_version = p.map_version + 1
    WHERE p.name = apply_map.defined.name AND p.version = apply_map.defined.version;
END
$$;
COMMENT ON FUNCTION lanes.apply_map(lanes.projection, int[], bigint, bigint) IS
    'Writes a new map, and the rows of the lanes that it touches, whose locks are held. A part of the changes of maps';
REVOKE ALL ON FUNCTION lanes.apply_map(lanes.projection, int[], bigint, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.finish_reshaping(projection text) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(finish_reshaping.projection);
    waiting lanes.reshaping;
BEGIN
    PERFORM lanes.require_read_committed('change a map');
    SELECT r.* INTO waiting FROM lanes.reshaping AS r WHERE r.projection = defined.name AND r.version = defined.version;
    IF NOT FOUND OR NOT lanes.all_stand(waiting) THEN
        RETURN false;
    END IF;
    -- Nobody is waited for, and what was locked is let go if not all can be: somebody is at it, or works on.
    BEGIN
        SELECT p.* INTO defined FROM lanes.projection AS p
        WHERE p.name = defined.name AND p.version = defined.version FOR NO KEY UPDATE NOWAIT;
        SELECT r.* INTO waiting FROM lanes.reshaping AS r
        WHERE r.projection = defined.name AND r.version = defined.version;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (waiting.involved)
        ORDER BY c.lane FOR UPDATE NOWAIT;
        IF NOT lanes.all_stand(waiting) THEN
            RETURN false;
        END IF;
        PERFORM lanes.apply_map(defined, waiting.slot_lanes, waiting.stop_tick, waiting.stop_position);
        DELETE FROM lanes.reshaping AS r WHERE r.projection = defined.name AND r.version = defined.version;
        RETURN true;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
END
$$;
COMMENT ON FUNCTION lanes.finish_reshaping(text) IS
    'Changes the map if a change waits and all the lanes that it involves stand at the stop; false if there is nothing to do yet. begin_batch and claim_batch call it';
REVOKE ALL ON FUNCTION lanes.finish_reshaping(text) FROM PUBLIC;

CREATE FUNCTION lanes.all_stand(waiting lanes.reshaping) RETURNS boolean
    VOLATILE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM lanes.checkpoint AS c
        WHERE c.projection = all_stand.waiting.projection AND c.version = all_stand.waiting.version
          AND c.lane = ANY (all_stand.waiting.involved)
          AND (c.tick, c."position") <> (all_stand.waiting.stop_tick, all_stand.waiting.stop_position));
END
$$;
COMMENT ON FUNCTION lanes.all_stand(lanes.reshaping) IS
    'Whether all lanes that a change of the map involves stand where they have to stop';

CREATE FUNCTION lanes.lock_map(projection text) RETURNS lanes.projection
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(lock_map.projection);
    waiting lanes.reshaping;
BEGIN
    PERFORM lanes.require_read_committed('change a map');
    IF COALESCE(pg_catalog.current_setting('pg_lanes.batch', true), '') <> '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'cannot change a map in the transaction of a batch',
            HINT = 'Commit the batch first.';
    END IF;
    PERFORM lanes.finish_reshaping(lock_map.projection);
    SELECT p.* INTO STRICT defined FROM lanes.projection AS p
    WHERE p.name = defined.name AND p.version = defined.version FOR NO KEY UPDATE;
    SELECT r.* INTO waiting FROM lanes.reshaping AS r WHERE r.projection = defined.name AND r.version = defined.version;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('a change of the map of projection "%s" is waiting', lock_map.projection),
            DETAIL = pg_catalog.format('%s, asked for by %s at %s, waits for lanes %s to stand at %s.',
                waiting.kind, waiting.requested_by, waiting.requested_at,
                (SELECT pg_catalog.string_agg(c.lane::text, ', ' ORDER BY c.lane) FROM lanes.checkpoint AS c
                 WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (waiting.involved)
                   AND (c.tick, c."position") <> (waiting.stop_tick, waiting.stop_position)),
                lanes.place(waiting.stop_tick, waiting.stop_position)),
            HINT = 'Wait for it, or take it back with lanes.cancel_resize; lanes.status says what each lane does.';
    END IF;
    RETURN defined;
END
$$;
COMMENT ON FUNCTION lanes.lock_map(text) IS
    'Locks the map of a projection; an error if a change of it waits. The first step of every change';
REVOKE ALL ON FUNCTION lanes.lock_map(text) FROM PUBLIC;

CREATE FUNCTION lanes.change_map(defined lanes.projection, kind text, slot_lanes int[]) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    plan record;
    stop lanes.checkpoint;
BEGIN
    SELECT p.* INTO STRICT plan FROM lanes.plan_change(change_map.defined.slot_lanes, change_map.slot_lanes) AS p;
    IF plan.moved = 0 AND pg_catalog.cardinality(change_map.slot_lanes) = change_map.defined.slots THEN
        RETURN true;
    END IF;
    -- Waits for the batches that run. If the slots get other numbers, also for those of lanes that keep theirs: a batch
    -- parks keys under the numbers that it began with.
    PERFORM FROM lanes.checkpoint AS c
    WHERE c.projection = change_map.defined.name AND c.version = change_map.defined.version
      AND (c.lane = ANY (plan.involved || plan.parents)
           OR pg_catalog.cardinality(change_map.slot_lanes) <> change_map.defined.slots)
    ORDER BY c.lane FOR UPDATE;
    IF plan.involved = '{}' THEN
        PERFORM lanes.apply_map(change_map.defined, change_map.slot_lanes);
        RETURN true;
    END IF;
    SELECT c.* INTO STRICT stop
    FROM lanes.checkpoint AS c
    WHERE c.projection = change_map.defined.name AND c.version = change_map.defined.version
      AND c.lane = ANY (plan.involved)
    ORDER BY c.tick DESC, c."position" DESC LIMIT 1;
    UPDATE lanes.checkpoint AS c
    SET stop_tick = stop.tick, stop_position = stop."position"
    WHERE c.projection = change_map.defined.name AND c.version = change_map.defined.version
      AND c.lane = ANY (plan.involved);
    INSERT INTO lanes.reshaping (projection, version, kind, slot_lanes, involved, stop_tick, stop_position)
    VALUES (change_map.defined.name, change_map.defined.version, change_map.kind, change_map.slot_lanes, plan.involved,
        stop.tick, stop."position");
    RETURN lanes.finish_reshaping(change_map.defined.name || '~' || change_map.defined.version);
END
$$;
COMMENT ON FUNCTION lanes.change_map(lanes.projection, text, int[]) IS
    'Changes a locked map now if lanes are only split or stand at one place (true), else makes the lanes that it involves stop (false)';
REVOKE ALL ON FUNCTION lanes.change_map(lanes.projection, text, int[]) FROM PUBLIC;

CREATE FUNCTION lanes.resize(projection text, lanes int, modulo boolean DEFAULT false) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.lock_map(resize.projection);
BEGIN
    PERFORM lanes.require_number('lanes', resize.lanes);
    RETURN lanes.change_map(defined, pg_catalog.format('resize to %s lanes', resize.lanes),
        lanes.plan_resize(defined.slot_lanes, resize.lanes, COALESCE(resize.modulo, false)));
END
$$;
COMMENT ON FUNCTION lanes.resize(text, int, boolean) IS
    'Changes the number of a projection''s lanes while they work. True: done. False: the lanes involved first come to one place, and the change is made when they are there. The fewest slots move; from a map by modulo to a multiple or divisor, and with modulo always, lane_of(key, lanes) names the lane afterwards';
REVOKE ALL ON FUNCTION lanes.resize(text, int, boolean) FROM PUBLIC;

CREATE FUNCTION lanes.require_number(what text, number int) RETURNS void
    IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF require_number.number IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = pg_catalog.format('%s must not be null', require_number.what);
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.require_number(text, int) IS 'Refuses a null where a number of a lane or slot is needed';

CREATE FUNCTION lanes.split(projection text, lane int) RETURNS int
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.lock_map(split.projection);
    target  int[];
BEGIN
    PERFORM lanes.require_number('lane', split.lane);
    target := lanes.plan_split(defined.slot_lanes, split.lane, (
        SELECT pg_catalog.array_agg((COALESCE(s.share, 0) * 1000000)::bigint ORDER BY u.slot)
        FROM pg_catalog.generate_series(0, defined.slots - 1) AS u (slot)
        LEFT JOIN lanes.slot_shares(defined) AS s ON s.slot = u.slot));
    PERFORM lanes.change_map(defined, pg_catalog.format('split of lane %s', split.lane), target);
    RETURN (SELECT p.new_lanes[1] FROM lanes.plan_change(defined.slot_lanes, target) AS p);
END
$$;
COMMENT ON FUNCTION lanes.split(text, int) IS
    'Gives half of a lane''s slots, by their events of late, to a new lane, which begins where the lane stands; returns its number. Waits for no more than a running batch';
REVOKE ALL ON FUNCTION lanes.split(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.merge(projection text, keep int, gone int) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.lock_map(merge.projection);
BEGIN
    PERFORM lanes.require_number('lane', merge.keep), lanes.require_number('lane', merge.gone);
    RETURN lanes.change_map(defined, pg_catalog.format('merge of lane %s into lane %s', merge.gone, merge.keep),
        lanes.plan_merge(defined.slot_lanes, merge.keep, merge.gone));
END
$$;
COMMENT ON FUNCTION lanes.merge(text, int, int) IS
    'Gives the slots of lane gone to lane keep. True: done. False: it is done when both have come to one place';
REVOKE ALL ON FUNCTION lanes.merge(text, int, int) FROM PUBLIC;

CREATE FUNCTION lanes.move(projection text, slots int[], lane int) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.lock_map(move.projection);
BEGIN
    PERFORM lanes.require_number('lane', move.lane), lanes.require_number('slots', pg_catalog.cardinality(move.slots));
    RETURN lanes.change_map(defined, pg_catalog.format('move of %s slots to lane %s', pg_catalog.cardinality(move.slots), move.lane),
        lanes.plan_move(defined.slot_lanes, move.slots, move.lane));
END
$$;
COMMENT ON FUNCTION lanes.move(text, int[], int) IS
    'Gives slots to a lane, a new one if there is none of the number. True: done. False: it is done when the lanes involved have come to one place';
REVOKE ALL ON FUNCTION lanes.move(text, int[], int) FROM PUBLIC;

CREATE FUNCTION lanes.isolate(projection text, key text) RETURNS int
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.lock_map(isolate.projection);
BEGIN
    IF isolate.key IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'key must not be null';
    END IF;
    PERFORM lanes.change_map(defined, pg_catalog.format('isolation of key %L', isolate.key),
        lanes.plan_isolate(defined.slot_lanes, @extschema@.lane_of(isolate.key, defined.slots)));
    RETURN lanes.lane_for(isolate.projection, isolate.key);
END
$$;
COMMENT ON FUNCTION lanes.isolate(text, text) IS
    'Puts the slot of a hot key alone on a lane, and returns the lane''s number. Other keys of the slot come with it';
REVOKE ALL ON FUNCTION lanes.isolate(text, text) FROM PUBLIC;

CREATE FUNCTION lanes.cancel_resize(projection text) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(cancel_resize.projection);
    waiting lanes.reshaping;
BEGIN
    PERFORM FROM lanes.projection AS p WHERE p.name = defined.name AND p.version = defined.version FOR NO KEY UPDATE;
    DELETE FROM lanes.reshaping AS r WHERE r.projection = defined.name AND r.version = defined.version
    RETURNING r.* INTO waiting;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM lanes.checkpoint AS c
    WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (waiting.involved)
    ORDER BY c.lane FOR UPDATE;
    UPDATE lanes.checkpoint AS c SET stop_tick = NULL, stop_position = NULL
    WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (waiting.involved);
    RETURN true;
END
$$;
COMMENT ON FUNCTION lanes.cancel_resize(text) IS
    'Takes back a change of the map that waits, and lets its lanes go on; false if none waits';
REVOKE ALL ON FUNCTION lanes.cancel_resize(text) FROM PUBLIC;

CREATE FUNCTION lanes.wait_for(projection text, key text, "position" bigint, timeout interval DEFAULT '10 s')
    RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    deadline CONSTANT timestamptz := pg_catalog.clock_timestamp() + wait_for.timeout;
    defined  lanes.projection;
    this_lane record;
    reached  boolean;
BEGIN
    PERFORM lanes.require_read_committed('wait for a lane');
    IF wait_for."position" IS NULL OR wait_for.key IS NULL OR wait_for.timeout IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'key, position and timeout must not be null';
    END IF;
    LOOP
        -- Each round anew: the key may have moved to another lane.
        defined := lanes.find_projection(wait_for.projection);
        -- In one statement, so that the map, the lane and what is parked are of one moment. A parked key is passed by its lane,
        -- and not applied.
        SELECT c."position", c.tick, EXISTS (
                SELECT FROM lanes.parked_event AS e
                WHERE e.projection = p.name AND e.version = p.version
                  AND e.slot = @extschema@.lane_of(wait_for.key, p.slots)
                  AND e.key_hash = pg_catalog.sha256(pg_catalog.convert_to(wait_for.key, 'UTF8'))
                  AND e."position" <= wait_for."position") AS is_parked
        INTO this_lane
        FROM lanes.projection AS p
        JOIN lanes.checkpoint AS c ON c.projection = p.name AND c.version = p.version
            AND c.lane = p.slot_lanes[@extschema@.lane_of(wait_for.key, p.slots) + 1]
        WHERE p.name = defined.name AND p.version = defined.version;
        IF this_lane.tick = 0 THEN
            reached := this_lane."position" >= wait_for."position";
        ELSE
            reached := (lanes.tick_of(defined.log_id, wait_for."position"), wait_for."position")
                <= (this_lane.tick, this_lane."position");
        END IF;
        IF reached AND NOT this_lane.is_parked THEN
            RETURN true;
        END IF;
        IF pg_catalog.clock_timestamp() >= deadline THEN
            RETURN false;
        END IF;
        PERFORM pg_catalog.pg_sleep(0.02);
    END LOOP;
END
$$;
COMMENT ON FUNCTION lanes.wait_for(text, text, bigint, interval) IS
    'Waits until the lane of a key (the lane key, as text) has applied the event at a position, and no other lane; false if it has not after timeout, also if the key is parked before it';

CREATE FUNCTION lanes.event_slots(definition jsonb, slots int, types text[], keys text[], times bigint[],
                                  positions bigint[], payloads text[])
    RETURNS TABLE (slot int, lane_key text)
    IMMUTABLE STRICT PARALLEL SAFE COST 1000 ROWS 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'event_slots_wrapper';
COMMENT ON FUNCTION lanes.event_slots(jsonb, int, text[], text[], bigint[], bigint[], text[]) IS
    'For each event, in order, its slot and lane key in a projection: slot null if the projection does not read its type, lane key null if it has none';

CREATE FUNCTION lanes.register_log(events_table regclass, key_column name DEFAULT 'key', type_column name DEFAULT 'type',
                                   time_column name DEFAULT 'ts', payload_column name DEFAULT 'payload',
                                   position_column name DEFAULT 'position', xid_column name DEFAULT 'xid')
    RETURNS uuid
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Up to this size an index is made here, under a lock that keeps appenders out for as long.
    small_bytes CONSTANT bigint := 64 * 1024 * 1024;
    named       record;
    found_type  regtype;
    is_not_null boolean;
    time_type   regtype;
    registered  uuid;
    foreign_position bigint;
    sequence    text;
    table_name  text;
BEGIN
    IF register_log.events_table IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'events_table must not be null';
    END IF;
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) INTO table_name
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = register_log.events_table AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p';
    IF table_name IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'wrong_object_type',
            MESSAGE = pg_catalog.format('%s cannot be a log', register_log.events_table),
            DETAIL = 'A log is a permanent table: a view has no transactions, and a temporary or unlogged table loses events.',
            HINT = 'Name the table that the events are appended to.';
    END IF;
    SELECT e.log_id INTO registered FROM lanes.events_table AS e WHERE e.events_table = table_name;
    IF FOUND THEN
        RETURN registered;
    END IF;

    FOR named IN
        SELECT v.* FROM (VALUES
            (register_log.position_column, '{bigint,integer}'::text[], 'the number of an event, from a sequence'),
            (register_log.key_column, '{text,uuid,bigint,integer,"character varying"}'::text[], 'the key'),
            (register_log.type_column, '{text,"character varying"}'::text[], 'the type'),
            (register_log.time_column, '{"timestamp with time zone",bigint}'::text[], 'the time'),
            (register_log.payload_column, '{jsonb,json,text}'::text[], 'the payload')) AS v (name, types, meaning)
    LOOP
        SELECT a.atttypid, a.attnotnull INTO found_type, is_not_null FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = register_log.events_table AND a.attname = named.name AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_column',
                MESSAGE = pg_catalog.format('table %s has no column "%s" for %s', table_name, named.name, named.meaning),
                HINT = 'Pass the name of the column, for example key_column => ''order_id''.';
        ELSIF pg_catalog.format_type(found_type, NULL) <> ALL (named.types) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'datatype_mismatch',
                MESSAGE = pg_catalog.format('column "%s" of table %s has type %s', named.name, table_name, found_type),
                HINT = pg_catalog.format('It is %s, and must be of type %s.', named.meaning, pg_catalog.array_to_string(named.types, ', '));
        ELSIF NOT is_not_null THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = pg_catalog.format('column "%s" of table %s may be null', named.name, table_name),
                DETAIL = pg_catalog.format('It is %s, and an event without one has no meaning.', named.meaning),
                HINT = pg_catalog.format('Run: ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', table_name, named.name);
        END IF;
        IF named.name = register_log.time_column THEN
            time_type := found_type;
        END IF;
    END LOOP;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = register_log.events_table AND a.attname = register_log.position_column
          AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND i.indisvalid)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('column "%s" of table %s is not unique', register_log.position_column, table_name),
            HINT = pg_catalog.format('Run: ALTER TABLE %s ADD UNIQUE (%I)', table_name, register_log.position_column);
    END IF;
    sequence := pg_catalog.pg_get_serial_sequence(table_name, register_log.position_column);
    IF (SELECT s.seqcache FROM pg_catalog.pg_sequence AS s WHERE s.seqrelid = sequence::regclass) > 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('sequence %s caches numbers', sequence),
            DETAIL = 'Sessions would draw positions from ranges of their own, and a key''s later event could have the lesser one.',
            HINT = pg_catalog.format('Run: ALTER SEQUENCE %s CACHE 1', sequence);
    END IF;

    SELECT a.atttypid INTO found_type FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = register_log.events_table AND a.attname = register_log.xid_column AND NOT a.attisdropped;
    IF NOT FOUND THEN
        -- The default is the same for all rows that are there, so none is rewritten: they belong to this transaction.
        EXECUTE pg_catalog.format('ALTER TABLE %s ADD COLUMN %I xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()',
            table_name, register_log.xid_column);
    ELSIF found_type <> 'xid8'::regtype OR NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = register_log.events_table AND a.attname = register_log.xid_column AND a.attnotnull
          AND pg_catalog.pg_get_expr(d.adbin, d.adrelid) = 'pg_current_xact_id()')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('column "%s" of table %s does not hold the appending transaction', register_log.xid_column, table_name),
            HINT = 'It must be xid8 NOT NULL DEFAULT pg_current_xact_id(). Pass another name as xid_column, and such a column is added.';
    ELSE
        EXECUTE pg_catalog.format(
            'SELECT pg_catalog.min(e.%1$I) FROM %2$s AS e'
            ' WHERE e.%3$I >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) AND e.%3$I <> pg_catalog.pg_current_xact_id()',
            register_log.position_column, table_name, register_log.xid_column) INTO foreign_position;
        IF foreign_position IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = pg_catalog.format('the event at position %s of table %s has a transaction id of another cluster', foreign_position, table_name),
                DETAIL = 'The table was restored from a dump. Such an event would not be read before this cluster has come to that id.',
                HINT = pg_catalog.format('Run: UPDATE %1$s SET %2$I = DEFAULT WHERE %2$I >= pg_snapshot_xmax(pg_current_snapshot())', table_name, register_log.xid_column);
        END IF;
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = register_log.events_table AND a.attname = register_log.xid_column AND i.indpred IS NULL AND i.indisvalid)
    THEN
        IF pg_catalog.pg_total_relation_size(register_log.events_table) > small_bytes THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = pg_catalog.format('table %s has no index on "%s"', table_name, register_log.xid_column),
                DETAIL = 'The table is too large to make it here, where appenders would wait for it.',
                HINT = pg_catalog.format('Run: ALTER TABLE %1$s ADD COLUMN IF NOT EXISTS %2$I xid8 NOT NULL DEFAULT pg_current_xact_id(); CREATE INDEX CONCURRENTLY ON %1$s (%2$I, %3$I)',
                    table_name, register_log.xid_column, register_log.position_column);
        END IF;
        EXECUTE pg_catalog.format('CREATE INDEX ON %s (%I, %I)', table_name, register_log.xid_column, register_log.position_column);
    END IF;

    INSERT INTO lanes.log AS l (log_id) VALUES (pg_catalog.gen_random_uuid()) RETURNING l.log_id INTO registered;
    INSERT INTO lanes.events_table (log_id, events_table, position_column, key_column, type_column, time_column,
        payload_column, xid_column, time_is_timestamp, system_identifier)
    VALUES (registered, table_name, register_log.position_column, register_log.key_column, register_log.type_column,
        register_log.time_column, register_log.payload_column, register_log.xid_column,
        time_type = 'timestamptz'::regtype, (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c));
    RETURN registered;
END
$$;
COMMENT ON FUNCTION lanes.register_log(regclass, name, name, name, name, name, name) IS
    'Makes a table of events a log that projections can read; adds the column with the appending transaction and its index, or says how to. Returns the id of the log, also if the table is one already';
REVOKE ALL ON FUNCTION lanes.register_log(regclass, name, name, name, name, name, name) FROM PUBLIC;

CREATE FUNCTION lanes.find_events_table(events_table regclass) RETURNS lanes.events_table
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    log lanes.events_table;
BEGIN
    SELECT e.* INTO log
    FROM lanes.events_table AS e
    WHERE pg_catalog.to_regclass(e.events_table) = find_events_table.events_table;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('table %s is not a log', COALESCE(find_events_table.events_table::text, 'null')),
            HINT = 'Make it one with lanes.register_log.';
    END IF;
    RETURN log;
END
$$;
COMMENT ON FUNCTION lanes.find_events_table(regclass) IS 'What is registered of an events table; an error if it is no log';

CREATE FUNCTION lanes.require_own_cluster(log lanes.events_table) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_catalog.pg_is_in_recovery() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'read_only_sql_transaction',
            MESSAGE = 'cannot read events of a log on a standby',
            HINT = 'Connect to the primary.';
    END IF;
    IF require_own_cluster.log.system_identifier <> (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('table %s came from another database cluster', require_own_cluster.log.events_table),
            DETAIL = 'The transaction ids in the table and in its ticks mean nothing here.',
            HINT = pg_catalog.format('Run: SELECT lanes.rebase(%L)', require_own_cluster.log.events_table);
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.require_own_cluster(lanes.events_table) IS
    'Refuses an events table whose transaction ids are those of another cluster, and standbys';

-- The condition under which a row belongs to the tick with the second of two snapshots ($1, null: none, and $2). What was
-- under way in the first is named by id, so that a transaction which stays open for days makes nobody walk through the
-- events since.
CREATE FUNCTION lanes.between_ticks(log lanes.events_table) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SECURITY INVOKER
BEGIN ATOMIC
    SELECT pg_catalog.format(
        '(%1$I >= COALESCE(pg_catalog.pg_snapshot_xmax($1), ''0''::xid8) AND %1$I < pg_catalog.pg_snapshot_xmax($2)'
        ' OR %1$I = ANY (ARRAY(SELECT pg_catalog.pg_snapshot_xip($1))))'
        ' AND pg_catalog.pg_visible_in_snapshot(%1$I, $2)', between_ticks.log.xid_column);
END;
COMMENT ON FUNCTION lanes.between_ticks(lanes.events_table) IS
    'The SQL condition of the events between two snapshots, $1 and $2';

CREATE FUNCTION lanes.milliseconds(log lanes.events_table) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE WHEN NOT (milliseconds.log).time_is_timestamp THEN pg_catalog.format('%I', (milliseconds.log).time_column)
        ELSE pg_catalog.format(
            'CASE WHEN pg_catalog.isfinite(%1$I) THEN (EXTRACT(epoch FROM %1$I) * 1000)::bigint'
            ' WHEN %1$I > ''epoch''::timestamptz THEN 9223372036854775807 ELSE (-9223372036854775808)::bigint END',
            (milliseconds.log).time_column) END;
END;
COMMENT ON FUNCTION lanes.milliseconds(lanes.events_table) IS
    'The SQL expression of an event''s time in milliseconds since 1970 UTC; the greatest and the least number for the infinite times';

CREATE FUNCTION lanes.time_of(milliseconds bigint) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE WHEN time_of.milliseconds BETWEEN -62135596800000 AND 253402300799999
        THEN pg_catalog.to_timestamp((time_of.milliseconds / 1000.0)::double precision) END;
END;
COMMENT ON FUNCTION lanes.time_of(bigint) IS
    'A time in milliseconds since 1970 UTC as a timestamp; null outside of the years 1 to 9999, where nobody means a time';

CREATE FUNCTION lanes.tick(events_table regclass) RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    log    lanes.events_table := lanes.find_events_table(tick.events_table);
    newest lanes.tick;
    now_visible pg_snapshot;
    added  bigint;
    last_position bigint;
    last_time timestamptz;
BEGIN
    PERFORM lanes.require_read_committed('tick');
    PERFORM lanes.require_own_cluster(log);
    PERFORM FROM lanes.log AS l WHERE l.log_id = log.log_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT t.* INTO newest FROM lanes.tick AS t WHERE t.log_id = log.log_id ORDER BY t.tick DESC LIMIT 1;
    -- After the lock, so that ticks follow each other as their snapshots do. What this very transaction appends, before or
    -- after, comes with a later one.
    now_visible := pg_catalog.pg_current_snapshot();
    IF pg_catalog.pg_visible_in_snapshot(pg_catalog.pg_current_xact_id(), now_visible) THEN
        now_visible := pg_catalog.format('%s:%s:%s',
            LEAST(pg_catalog.pg_snapshot_xmin(now_visible), pg_catalog.pg_current_xact_id()),
            pg_catalog.pg_snapshot_xmax(now_visible),
            (SELECT pg_catalog.string_agg(x.id::text, ',' ORDER BY x.id)
             FROM (SELECT pg_catalog.pg_snapshot_xip(now_visible) UNION SELECT pg_catalog.pg_current_xact_id()) AS x (id)))::pg_snapshot;
    END IF;
    EXECUTE pg_catalog.format('SELECT pg_catalog.count(*), pg_catalog.max(%I) FROM %s WHERE %s',
        log.position_column, log.events_table, lanes.between_ticks(log))
    INTO added, last_position USING newest.snapshot, now_visible;
    IF added > 0 THEN
        INSERT INTO lanes.tick (log_id, tick, snapshot, events, last_position)
        VALUES (log.log_id, COALESCE(newest.tick, 0) + 1, now_visible, COALESCE(newest.events, 0) + added,
            GREATEST(newest.last_position, last_position))
        RETURNING * INTO newest;
        EXECUTE pg_catalog.format('SELECT lanes.time_of(%s) FROM %s WHERE %I = $1',
            lanes.milliseconds(log), log.events_table, log.position_column)
        INTO last_time USING newest.last_position;
    END IF;
    -- A lane needs the tick before its own, and a new one begins with the first that there is: while one is being defined,
    -- whose row refers to the log's, none is deleted.
    PERFORM FROM lanes.log AS l WHERE l.log_id = log.log_id FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        DELETE FROM lanes.tick AS t
        WHERE t.log_id = log.log_id AND t.tick < newest.tick
          AND t.tick < COALESCE((SELECT pg_catalog.min(c.tick) - 1 FROM lanes.checkpoint AS c
                                 WHERE c.log_id = log.log_id AND c.retired_at IS NULL), newest.tick);
    END IF;
    -- At most once a second, where nothing is new.
    UPDATE lanes.log AS l
    SET horizon = GREATEST(l.horizon, newest.last_position), reported_at = pg_catalog.clock_timestamp(),
        horizon_time = CASE WHEN added > 0 THEN newest.ticked_at ELSE l.horizon_time END,
        horizon_event_time = COALESCE(last_time, l.horizon_event_time)
    WHERE l.log_id = log.log_id
      AND (added > 0 OR l.reported_at < pg_catalog.clock_timestamp() - interval '1 s');
    RETURN COALESCE(newest.tick, 0);
END
$$;
COMMENT ON FUNCTION lanes.tick(regclass) IS
    'Makes what has become visible in an events table readable, as its next tick; returns the newest tick, null if another session is at it. Somebody has to call it again and again, in transactions of its own: ingestd, a worker between two batches';
REVOKE ALL ON FUNCTION lanes.tick(regclass) FROM PUBLIC;

CREATE FUNCTION lanes.tick_of(log_id uuid, "position" bigint) RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    log  lanes.events_table;
    appended_by xid8;
BEGIN
    SELECT e.* INTO log FROM lanes.events_table AS e WHERE e.log_id = tick_of.log_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('log %s is not a table of events', COALESCE(tick_of.log_id::text, 'null')),
            HINT = 'The table lanes.events_table lists the ones that are.';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I FROM %s WHERE %I = $1', log.xid_column, log.events_table, log.position_column)
    INTO appended_by USING tick_of."position";
    RETURN (
        SELECT t.tick FROM lanes.tick AS t
        WHERE t.log_id = tick_of.log_id AND pg_catalog.pg_visible_in_snapshot(appended_by, t.snapshot)
        ORDER BY t.tick LIMIT 1);
END
$$;
COMMENT ON FUNCTION lanes.tick_of(uuid, bigint) IS
    'The tick of the event at a position, as far as ticks are kept; null if it is in none yet';
REVOKE ALL ON FUNCTION lanes.tick_of(uuid, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.read_batch(projection text, lane int, maximum int DEFAULT 1000)
    RETURNS TABLE (tick bigint, "position" bigint, event_type text, event_key text, lane_key text, event_time timestamptz,
                   payload jsonb)
    VOLATILE PARALLEL UNSAFE ROWS 1000 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Events that are read at once, whoever they belong to.
    chunk_events CONSTANT int := 5000;
    defined   lanes.projection := lanes.find_projection(read_batch.projection);
    log       lanes.events_table;
    this_lane lanes.checkpoint;
    scanned   jsonb := NULLIF(pg_catalog.current_setting('pg_lanes.scanned', true), '')::jsonb;
    now_tick  bigint;
    now_position bigint;
    this_tick lanes.tick;
    before    pg_snapshot;
    chunk     record;
    event     record;
    statement text;
    skipped   bigint := COALESCE((scanned -> 'skipped_null_key')::bigint, 0);
    taken     bigint := 0;
    last_time timestamptz := (scanned ->> 'event_time')::timestamptz;
    payload_type regtype;
    -- Positions that are never to be applied, and those of them that were met here.
    skips     bigint[];
    skipped_here jsonb := COALESCE(scanned -> 'skips', '[]');
BEGIN
    IF read_batch.maximum IS NULL OR read_batch.maximum < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('maximum must be at least 1, not %s', COALESCE(read_batch.maximum::text, 'null')),
            HINT = 'Pass how many events the batch may have.';
    END IF;
    SELECT c.* INTO this_lane FROM lanes.checkpoint AS c
    WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = read_batch.lane;
    IF pg_catalog.current_setting('pg_lanes.batch', true) IS DISTINCT FROM pg_catalog.format('%s in epoch %s',
        @extschema@.checkpoint_name(read_batch.projection, read_batch.lane), this_lane.epoch)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('no batch of lane %s of projection "%s" was begun in this transaction',
                COALESCE(read_batch.lane::text, 'null'), read_batch.projection),
            HINT = 'Call lanes.begin_batch or lanes.claim_batch first.';
    END IF;
    SELECT e.* INTO log FROM lanes.events_table AS e WHERE e.log_id = defined.log_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'wrong_object_type',
            MESSAGE = pg_catalog.format('projection "%s" reads a log of ingestd', read_batch.projection),
            HINT = 'Its daemon reads the events. lanes.read_batch is for tables of events: lanes.register_log.';
    END IF;
    PERFORM lanes.require_own_cluster(log);
    skips := ARRAY(SELECT s FROM lanes.skips_ahead(read_batch.projection, read_batch.lane) AS s);
    payload_type := (SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = pg_catalog.to_regclass(log.events_table) AND a.attname = log.payload_column);

    statement := pg_catalog.format(
        'SELECT pg_catalog.count(*) AS n, pg_catalog.array_agg(e.p) AS positions, pg_catalog.array_agg(e.t) AS types,'
        ' pg_catalog.array_agg(e.k) AS keys, pg_catalog.array_agg(e.ms) AS times, pg_catalog.array_agg(e.b) AS payloads'
        ' FROM (SELECT %1$I::bigint AS p, %2$I::text AS t, %3$I::text AS k, %4$s AS ms, %5$I::text AS b FROM %6$s'
        ' WHERE %7$s AND %1$I > $3 AND %1$I <= $4 ORDER BY %1$I LIMIT $5) AS e',
        log.position_column, log.type_column, log.key_column,
        lanes.milliseconds(log), log.payload_column, log.events_table, lanes.between_ticks(log));
    now_tick := COALESCE((scanned -> 'tick')::bigint, this_lane.tick);
    now_position := COALESCE((scanned -> 'position')::bigint, this_lane."position");
    WHILE taken < read_batch.maximum LOOP
        SELECT t.* INTO this_tick FROM lanes.tick AS t
        WHERE t.log_id = log.log_id AND (t.tick, t.last_position) > (now_tick, now_position) ORDER BY t.tick LIMIT 1;
        -- At the stop, all is read that may be.
        EXIT WHEN NOT FOUND OR (now_tick, now_position) >= (this_lane.stop_tick, this_lane.stop_position);
        IF this_tick.tick > now_tick THEN
            now_tick := this_tick.tick;
            now_position := 0;
        END IF;
        SELECT t.snapshot INTO before FROM lanes.tick AS t
        WHERE t.log_id = log.log_id AND t.tick < now_tick ORDER BY t.tick DESC LIMIT 1;
        EXECUTE statement INTO chunk USING before, this_tick.snapshot, now_position,
            CASE WHEN this_tick.tick = this_lane.stop_tick THEN this_lane.stop_position ELSE 9223372036854775807 END, chunk_events;
        FOR event IN
            SELECT u.p, u.t, u.k, u.ms, u.b, s.slot, s.lane_key
            FROM ROWS FROM (
                unnest(chunk.positions, chunk.types, chunk.keys, chunk.times, chunk.payloads),
                lanes.event_slots(defined.definition, defined.slots, chunk.types, chunk.keys, chunk.times, chunk.positions,
                    chunk.payloads)) AS u (p, t, k, ms, b, slot, lane_key)
            CROSS JOIN LATERAL (SELECT u.slot, u.lane_key) AS s
            WHERE chunk.n > 0
        LOOP
            now_position := event.p;
            last_time := COALESCE(lanes.time_of(event.ms), last_time);
            CONTINUE WHEN event.slot IS NULL OR defined.slot_lanes[event.slot + 1] <> read_batch.lane;
            IF event.lane_key IS NULL THEN
                skipped := skipped + 1;
                CONTINUE;
            END IF;
            IF event.p = ANY (skips) THEN
                PERFORM lanes.skip_failed(read_batch.projection, read_batch.lane, this_lane.epoch, ARRAY[event.lane_key],
                    ARRAY[event.p], ARRAY[event.t], ARRAY[event.k], ARRAY[event.ms], ARRAY[event.b], ARRAY[NULL]::text[],
                    ARRAY[NULL]::text[]);
                skipped_here := skipped_here || pg_catalog.jsonb_build_object('tick', now_tick, 'position', event.p);
                CONTINUE;
            END IF;
            -- Behind one that waits, an event waits too (LANE-3).
            INSERT INTO lanes.parked_event
                (projection, version, slot, key_hash, tick, "position", event_type, event_key, event_ts, payload)
            SELECT k.projection, k.version, k.slot, k.key_hash, now_tick, event.p, event.t, event.k, event.ms, event.b
            FROM lanes.parked_key AS k
            WHERE k.projection = defined.name AND k.version = defined.version AND k.slot = event.slot
              AND k.key_hash = pg_catalog.sha256(pg_catalog.convert_to(event.lane_key, 'UTF8'));
            CONTINUE WHEN FOUND;
            IF payload_type = 'jsonb'::regtype THEN
                read_batch.payload := event.b::jsonb;
            ELSE
                BEGIN
                    read_batch.payload := event.b::jsonb;
                EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
                    -- Text may be anything, and json takes what jsonb does not, a \u0000 for one.
                    PERFORM lanes.park(read_batch.projection, read_batch.lane, this_lane.epoch, ARRAY[event.slot],
                        ARRAY[event.lane_key], ARRAY[event.p], ARRAY[event.t], ARRAY[event.k], ARRAY[event.ms], ARRAY[event.b],
                        ARRAY[SQLSTATE], ARRAY[SQLERRM], NULL, ARRAY[now_tick]);
                    CONTINUE;
                END;
            END IF;
            taken := taken + 1;
            read_batch.tick := now_tick;
            read_batch."position" := event.p;
            read_batch.event_type := event.t;
            read_batch.event_key := event.k;
            read_batch.lane_key := event.lane_key;
            read_batch.event_time := lanes.time_of(event.ms);
            RETURN NEXT;
            EXIT WHEN taken = read_batch.maximum;
        END LOOP;
        IF taken < read_batch.maximum AND chunk.n < chunk_events THEN
            now_position := CASE WHEN this_tick.tick = this_lane.stop_tick THEN this_lane.stop_position
                ELSE this_tick.last_position END;
        END IF;
    END LOOP;
    PERFORM pg_catalog.set_config('pg_lanes.scanned', pg_catalog.jsonb_build_object('tick', now_tick, 'position', now_position,
        'skipped_null_key', skipped, 'events', taken + COALESCE((scanned -> 'events')::bigint, 0),
        'event_time', last_time, 'skips', skipped_here)::text, true);
END
$$;
COMMENT ON FUNCTION lanes.read_batch(text, int, int) IS
    'In a batch''s transaction, the next events of a lane from an events table, in order, at most maximum. Events of parked keys are put behind these. commit_batch without a position accounts for what was read';
REVOKE ALL ON FUNCTION lanes.read_batch(text, int, int) FROM PUBLIC;

CREATE FUNCTION lanes.rebase(events_table regclass, restored_to bigint DEFAULT NULL) RETURNS uuid
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    log        lanes.events_table := lanes.find_events_table(rebase.events_table);
    system     bigint := (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c);
    rebased    uuid := pg_catalog.gen_random_uuid();
    least      xid8 := pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot());
    boundaries lanes.tick[];
    numbers    bigint[];
    appended   bigint;
BEGIN
    PERFORM lanes.require_read_committed('rebase');
    IF log.system_identifier = system THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('table %s is at home in this database cluster', log.events_table),
            HINT = 'lanes.rebase is for a table that was restored from a dump of another cluster.';
    END IF;
    EXECUTE pg_catalog.format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', log.events_table);
    PERFORM FROM lanes.projection AS p WHERE p.log_id = log.log_id ORDER BY p.name, p.version FOR NO KEY UPDATE;
    PERFORM FROM lanes.checkpoint AS c WHERE c.log_id = log.log_id ORDER BY c.projection, c.version, c.lane FOR UPDATE;
    IF rebase.restored_to IS NULL THEN
        -- A row that says of the transaction which wrote it that it appended it was not restored.
        EXECUTE pg_catalog.format('SELECT pg_catalog.min(%I) FROM %s AS e WHERE e.xmin = %I::xid',
            log.position_column, log.events_table, log.xid_column) INTO appended;
        IF appended IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = pg_catalog.format('the event at position %s of table %s was appended after the restore',
                    appended, log.events_table),
                DETAIL = 'From restored events it cannot be told apart by its transaction.',
                HINT = 'Pass the greatest position that was restored as restored_to; the events above it are read as new ones.';
        END IF;
    END IF;

    -- Only ticks between which lanes stand tell anything: the last one before a lane's place, and, if the lane is inside
    -- a tick, that one. Their snapshots and the ids in the table are both of the old cluster, so they fit each other.
    boundaries := ARRAY(
        SELECT t FROM lanes.tick AS t
        WHERE t.log_id = log.log_id AND EXISTS (
            SELECT FROM lanes.checkpoint AS c
            CROSS JOIN LATERAL (VALUES (c.tick, c."position"), (c.stop_tick, c.stop_position)) AS place (tick, "position")
            WHERE c.log_id = log.log_id AND c.retired_at IS NULL AND (
                t.tick = (SELECT pg_catalog.max(b.tick) FROM lanes.tick AS b WHERE b.log_id = log.log_id AND b.tick < place.tick)
                OR (place."position" > 0 AND t.tick = place.tick)))
        ORDER BY t.tick);
    numbers := ARRAY(SELECT t.tick FROM unnest(boundaries) AS t ORDER BY t.tick);
    -- The first id that a transaction can have is 3; this cluster's own must be above those that are given here.
    IF least::text::bigint <= pg_catalog.cardinality(boundaries) + 3 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('this cluster has had too few transactions to rebase %s ticks', pg_catalog.cardinality(boundaries)),
            HINT = 'Try again after some transactions have written.';
    END IF;
    -- What is above the last tick's positions is in no tick, whatever its id says: it may have been appended here.
    EXECUTE pg_catalog.format(
        'UPDATE %s AS e SET %2$I = (3 + CASE WHEN e.%3$I > $2 OR e.%3$I > $3 THEN pg_catalog.cardinality($1) ELSE'
        ' (SELECT pg_catalog.count(*) FROM unnest($1) AS t WHERE NOT pg_catalog.pg_visible_in_snapshot(e.%2$I, t.snapshot))'
        ' END)::text::xid8', log.events_table, log.xid_column, log.position_column)
    USING boundaries, rebase.restored_to,
        (SELECT pg_catalog.max(t.last_position) FROM lanes.tick AS t WHERE t.log_id = log.log_id);

    INSERT INTO lanes.log (log_id, horizon, horizon_time, horizon_event_time)
    SELECT rebased, l.horizon, l.horizon_time, l.horizon_event_time FROM lanes.log AS l WHERE l.log_id = log.log_id;
    DELETE FROM lanes.tick AS t WHERE t.log_id = log.log_id;
    UPDATE lanes.events_table AS e SET log_id = rebased, system_identifier = system WHERE e.log_id = log.log_id;
    INSERT INTO lanes.tick (log_id, tick, snapshot, ticked_at, events, last_position)
    SELECT rebased, b.n, pg_catalog.format('%1$s:%1$s:', b.n + 3)::pg_snapshot, b.ticked_at, b.events, b.last_position
    FROM unnest(boundaries) WITH ORDINALITY AS b (log_id, tick, snapshot, ticked_at, events, last_position, n);
    -- What waits already comes before all that is read from now on.
    UPDATE lanes.parked_event AS e SET tick = e.tick - 1 - (
        SELECT pg_catalog.max(o.tick) FROM lanes.parked_event AS o WHERE (o.projection, o.version) = (e.projection, e.version))
    FROM lanes.projection AS p
    WHERE p.log_id = log.log_id AND (e.projection, e.version) = (p.name, p.version);
    UPDATE lanes.reshaping AS r
    SET stop_tick = 1 + (SELECT pg_catalog.count(*) FROM unnest(numbers) AS b WHERE b < r.stop_tick)
    FROM lanes.projection AS p
    WHERE p.log_id = log.log_id AND (r.projection, r.version) = (p.name, p.version);
    UPDATE lanes.checkpoint AS c
    SET log_id = rebased,
        epoch = c.epoch + 1,
        tick = 1 + (SELECT pg_catalog.count(*) FROM unnest(numbers) AS b WHERE b < c.tick),
        stop_tick = CASE WHEN c.stop_tick IS NOT NULL
            THEN 1 + (SELECT pg_catalog.count(*) FROM unnest(numbers) AS b WHERE b < c.stop_tick) END,
        owner = NULL, owner_process_id = NULL, owner_application = NULL, owner_address = NULL, owner_started_at = NULL,
        released_at = pg_catalog.clock_timestamp(), taken_over = false
    WHERE c.log_id = log.log_id;
    UPDATE lanes.projection AS p SET log_id = rebased WHERE p.log_id = log.log_id;
    DELETE FROM lanes.log AS l WHERE l.log_id = log.log_id;
    RETURN rebased;
END
$$;
COMMENT ON FUNCTION lanes.rebase(regclass, bigint) IS
    'After dump and restore into another cluster: writes the transaction ids of an events table anew, so that every lane goes on exactly where it stood, under a new log id, which is returned. Events above restored_to (null: none) are new ones';
REVOKE ALL ON FUNCTION lanes.rebase(regclass, bigint) FROM PUBLIC;

CREATE VIEW lanes.events_in_flight AS
SELECT e.log_id, e.events_table, l.pid AS process_id, a.application_name AS application, a.state, a.xact_start AS began_at,
    pg_catalog.clock_timestamp() - a.xact_start AS age, l.pid IS NULL AS prepared, a.query
FROM lanes.events_table AS e
JOIN pg_catalog.pg_locks AS l
    ON l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
    AND l.relation = pg_catalog.to_regclass(e.events_table)
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid;
COMMENT ON VIEW lanes.events_in_flight IS 'Transactions that may have appended events which no tick shows yet. They hold nobody back: their events come in the tick after their commit';
COMMENT ON COLUMN lanes.events_in_flight.log_id IS 'Id of the log';
COMMENT ON COLUMN lanes.events_in_flight.events_table IS 'The events table';
COMMENT ON COLUMN lanes.events_in_flight.process_id IS 'Server process; null for a prepared transaction';
COMMENT ON COLUMN lanes.events_in_flight.application IS 'application_name of its session';
COMMENT ON COLUMN lanes.events_in_flight.state IS 'What the session does';
COMMENT ON COLUMN lanes.events_in_flight.began_at IS 'When the transaction began';
COMMENT ON COLUMN lanes.events_in_flight.age IS 'How long ago that was';
COMMENT ON COLUMN lanes.events_in_flight.prepared IS 'It is a prepared transaction (pg_prepared_xacts)';
COMMENT ON COLUMN lanes.events_in_flight.query IS 'Its present or last statement, as far as the reader may see it';
GRANT SELECT ON lanes.events_in_flight TO pg_monitor;

CREATE FUNCTION lanes.slot_shares(defined lanes.projection)
    RETURNS TABLE (slot int, share numeric, hot_key text, hot_key_share numeric)
    VOLATILE PARALLEL UNSAFE ROWS 1024 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sample_events CONSTANT int := 20000;
    log    lanes.events_table;
    sample record;
BEGIN
    SELECT e.* INTO log FROM lanes.events_table AS e
    WHERE e.log_id = slot_shares.defined.log_id AND EXISTS (
        -- By the catalogs: whoever may not use the schema may not even ask for its tables by name.
        SELECT FROM pg_catalog.pg_class AS r JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace
        WHERE pg_catalog.format('%I.%I', n.nspname, r.relname) = e.events_table
          AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(r.oid, 'SELECT'));
    IF NOT FOUND THEN
        -- What each lane has applied is known, and not which of its slots it was for.
        RETURN QUERY
        SELECT s.slot::int - 1, COALESCE(c.events / NULLIF(pg_catalog.sum(c.events) OVER (), 0), 0), NULL::text, NULL::numeric
        FROM (
            SELECT u.slot, u.lane, pg_catalog.count(*) OVER (PARTITION BY u.lane) AS of_lane
            FROM unnest(slot_shares.defined.slot_lanes) WITH ORDINALITY AS u (lane, slot)) AS s
        JOIN LATERAL (
            SELECT c.events::numeric / s.of_lane AS events FROM lanes.checkpoint AS c
            WHERE c.projection = slot_shares.defined.name AND c.version = slot_shares.defined.version AND c.lane = s.lane
        ) AS c ON true;
        RETURN;
    END IF;
    EXECUTE pg_catalog.format(
        'SELECT pg_catalog.array_agg(e.p) AS positions, pg_catalog.array_agg(e.t) AS types, pg_catalog.array_agg(e.k) AS keys,'
        ' pg_catalog.array_agg(e.ms) AS times, pg_catalog.array_agg(e.b) AS payloads'
        ' FROM (SELECT %1$I::bigint AS p, %2$I::text AS t, %3$I::text AS k, 0::bigint AS ms, %4$I::text AS b'
        ' FROM %5$s ORDER BY %1$I DESC LIMIT $1) AS e',
        log.position_column, log.type_column, log.key_column, log.payload_column, log.events_table)
    INTO sample USING sample_events;
    RETURN QUERY
    WITH event AS (
        SELECT e.slot, e.lane_key
        FROM lanes.event_slots(slot_shares.defined.definition, slot_shares.defined.slots, sample.types, sample.keys,
            sample.times, sample.positions, sample.payloads) AS e
        WHERE e.lane_key IS NOT NULL
    ), of_key AS (
        SELECT e.slot, e.lane_key, pg_catalog.count(*)::numeric / (SELECT pg_catalog.count(*) FROM event) AS share
        FROM event AS e GROUP BY e.slot, e.lane_key
    )
    SELECT DISTINCT ON (k.slot) k.slot, pg_catalog.sum(k.share) OVER (PARTITION BY k.slot), k.lane_key, k.share
    FROM of_key AS k ORDER BY k.slot, k.share DESC, k.lane_key;
END
$$;
COMMENT ON FUNCTION lanes.slot_shares(lanes.projection) IS
    'The share of events of each slot, and of its hottest key: of the latest 20000 events of an events table; with a log of ingestd, and without the right to read the table, of what the lanes have applied, each lane''s spread over its slots, without keys';
REVOKE ALL ON FUNCTION lanes.slot_shares(lanes.projection) FROM PUBLIC;

CREATE FUNCTION lanes.events_up_to(log_id uuid, tick bigint, "position" bigint) RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE sql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN events_up_to.tick = 0 THEN events_up_to."position" ELSE COALESCE((
        SELECT t.events FROM lanes.tick AS t
        WHERE t.log_id = events_up_to.log_id AND (t.tick, t.last_position) <= (events_up_to.tick, events_up_to."position")
        ORDER BY t.tick DESC LIMIT 1), 0::bigint) END;
$$;
COMMENT ON FUNCTION lanes.events_up_to(uuid, bigint, bigint) IS
    'How many events a log has up to a place; of an events table''s tick that the place is within, none';
REVOKE ALL ON FUNCTION lanes.events_up_to(uuid, bigint, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.explain_map(projection text, slot_lanes int[])
    RETURNS TABLE (lane int, slots bigint, slots_then bigint, slots_moved_in bigint, share_percent numeric,
                   share_percent_then numeric, pause text, pause_ms numeric, note text)
    VOLATILE PARALLEL UNSAFE ROWS 8 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- From this share on, one key is called the load of its lane.
    hot_share CONSTANT numeric := 0.5;
    defined lanes.projection := lanes.find_projection(explain_map.projection);
    plan    record;
BEGIN
    SELECT p.* INTO STRICT plan FROM lanes.plan_change(defined.slot_lanes, explain_map.slot_lanes) AS p;
    RETURN QUERY
    WITH slot AS (
        SELECT soon.lane AS lane_then, defined.slot_lanes[(soon.slot - 1) % defined.slots + 1] AS lane_now,
            -- A slot that is refined shares its events with those it is split into.
            COALESCE(s.share, 0) * defined.slots / pg_catalog.cardinality(explain_map.slot_lanes) AS share,
            s.hot_key, s.hot_key_share, soon.slot - 1 AS slot
        FROM unnest(explain_map.slot_lanes) WITH ORDINALITY AS soon (lane, slot)
        LEFT JOIN lanes.slot_shares(defined) AS s ON s.slot = (soon.slot - 1) % defined.slots
    ), now AS (
        SELECT s.lane_now AS lane, pg_catalog.count(*) * defined.slots / pg_catalog.cardinality(explain_map.slot_lanes) AS slots,
            pg_catalog.sum(s.share) AS share
        FROM slot AS s GROUP BY s.lane_now
    ), soon AS (
        SELECT s.lane_then AS lane, pg_catalog.count(*) AS slots, pg_catalog.sum(s.share) AS share,
            pg_catalog.count(*) FILTER (WHERE s.lane_then <> s.lane_now) AS moved,
            (pg_catalog.array_agg(s.hot_key ORDER BY s.hot_key_share DESC NULLS LAST)
                FILTER (WHERE s.hot_key IS NOT NULL AND @extschema@.lane_of(s.hot_key, pg_catalog.cardinality(explain_map.slot_lanes)) = s.slot))[1] AS hot_key,
            pg_catalog.max(s.hot_key_share)
                FILTER (WHERE s.hot_key IS NOT NULL AND @extschema@.lane_of(s.hot_key, pg_catalog.cardinality(explain_map.slot_lanes)) = s.slot) AS hot_key_share
        FROM slot AS s GROUP BY s.lane_then
    ), stop AS (
        SELECT c.tick, c."position",
            pg_catalog.count(*) OVER (PARTITION BY c.tick, c."position") < pg_catalog.count(*) OVER () AS leaves_some_behind
        FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (plan.involved)
        ORDER BY c.tick DESC, c."position" DESC LIMIT 1
    ), cost AS (
        SELECT pg_catalog.sum(c.work_ms) / NULLIF(pg_catalog.sum(c.events), 0) AS event_ms
        FROM lanes.checkpoint AS c WHERE c.projection = defined.name AND c.version = defined.version
    ), way AS (
        -- How long a lane needs to the stop, if it goes on at the pace of the projection's lanes so far.
        SELECT c.lane, n.share::double precision * cost.event_ms
            * (lanes.events_up_to(c.log_id, stop.tick, stop."position") - lanes.events_up_to(c.log_id, c.tick, c."position")) AS ms
        FROM lanes.checkpoint AS c
        JOIN now AS n ON n.lane = c.lane
        CROSS JOIN stop CROSS JOIN cost
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (plan.involved)
    )
    SELECT COALESCE(n.lane, t.lane), COALESCE(n.slots, 0), COALESCE(t.slots, 0), COALESCE(t.moved, 0),
        pg_catalog.round(COALESCE(n.share, 0) * 100, 1), pg_catalog.round(COALESCE(t.share, 0) * 100, 1),
        CASE
            WHEN COALESCE(n.lane, t.lane) <> ALL (plan.involved) OR NOT stop.leaves_some_behind THEN 'none'
            WHEN (c.tick, c."position") = (stop.tick, stop."position") THEN 'until the lanes behind it stand here'
            ELSE pg_catalog.format('from %s on; the lane stands at %s', lanes.place(stop.tick, stop."position"), lanes.place(c.tick, c."position"))
        END,
        CASE
            WHEN COALESCE(n.lane, t.lane) <> ALL (plan.involved) OR NOT stop.leaves_some_behind THEN 0
            -- From its own arrival at the stop to the last one's.
            ELSE pg_catalog.round(((SELECT pg_catalog.max(w.ms) FROM way AS w)
                - COALESCE((SELECT w.ms FROM way AS w WHERE w.lane = COALESCE(n.lane, t.lane)), 0))::numeric, 1)
        END,
        CASE
            WHEN t.lane IS NULL THEN 'retires'
            WHEN t.hot_key_share > hot_share * t.share AND t.hot_key_share * 2 > 1.0 / defined.lanes
                THEN pg_catalog.format('key %L alone is %s %% of all events: no number of lanes spreads it', t.hot_key,
                    pg_catalog.round(t.hot_key_share * 100, 1))
            WHEN n.lane IS NULL THEN 'new'
        END
    FROM now AS n
    FULL JOIN soon AS t ON t.lane = n.lane
    LEFT JOIN stop ON true
    LEFT JOIN lanes.checkpoint AS c
        ON c.projection = defined.name AND c.version = defined.version AND c.lane = COALESCE(n.lane, t.lane)
    ORDER BY 1;
END
$$;
COMMENT ON FUNCTION lanes.explain_map(text, int[]) IS
    'What a change of the map would do, by lane: slots and share of events now and then, who waits for whom and for about how long (pause_ms, null if no event was applied yet), and which key alone is the load. For maps that lanes.plan_split, plan_merge, plan_move and plan_isolate make';
REVOKE ALL ON FUNCTION lanes.explain_map(text, int[]) FROM PUBLIC;

CREATE FUNCTION lanes.explain_resize(projection text, lanes int, modulo boolean DEFAULT false)
    RETURNS TABLE (lane int, slots bigint, slots_then bigint, slots_moved_in bigint, share_percent numeric,
                   share_percent_then numeric, pause text, pause_ms numeric, note text)
    VOLATILE PARALLEL UNSAFE ROWS 8 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(explain_resize.projection);
BEGIN
    PERFORM lanes.require_number('lanes', explain_resize.lanes);
    RETURN QUERY SELECT e.* FROM lanes.explain_map(explain_resize.projection,
        lanes.plan_resize(defined.slot_lanes, explain_resize.lanes, COALESCE(explain_resize.modulo, false))) AS e;
END
$$;
COMMENT ON FUNCTION lanes.explain_resize(text, int, boolean) IS 'What lanes.resize would do, by lane. Changes nothing';
REVOKE ALL ON FUNCTION lanes.explain_resize(text, int, boolean) FROM PUBLIC;

CREATE OR REPLACE VIEW lanes.status AS
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

-- Paging over row shards: lanes.page. The rules are in core/src/page.

-- Not dumped: a restore runs CREATE EXTENSION, which makes another key, so cursors of the first database end there.
CREATE TABLE lanes.secret (
    only_row boolean     NOT NULL DEFAULT true,
    key      bytea       NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT secret_key PRIMARY KEY (only_row),
    CONSTRAINT secret_only_row CHECK (only_row),
    CONSTRAINT secret_length CHECK (pg_catalog.octet_length(key) >= 32)
);
COMMENT ON TABLE lanes.secret IS
    'The key that signs the cursors of lanes.page. Its owner may change it at any time, which ends all cursors; nobody else needs to see it';
COMMENT ON COLUMN lanes.secret.only_row IS 'True: there is one row';
COMMENT ON COLUMN lanes.secret.key IS 'Random bytes, at least 32';
COMMENT ON COLUMN lanes.secret.made_at IS 'When the key was made';
-- Also what ALTER DEFAULT PRIVILEGES may have granted.
REVOKE ALL ON lanes.secret FROM PUBLIC;
-- A random uuid has 122 bits from the server's own source of secrets.
INSERT INTO lanes.secret (key)
SELECT pg_catalog.sha256(pg_catalog.string_agg(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), ''::bytea))
FROM pg_catalog.generate_series(1, 4);

CREATE FUNCTION lanes.page_columns(source regclass)
    RETURNS TABLE (column_name name, type_id oid, collation_id oid, is_nullable boolean, key_position int,
                   key_collation_id oid, is_shard boolean, leads_index boolean)
    STABLE PARALLEL SAFE ROWS 20 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kind       "char";
    key_index  oid;
    shard_name name;
BEGIN
    SELECT c.relkind INTO kind FROM pg_catalog.pg_class AS c WHERE c.oid = page_columns.source;
    -- Children of a table that is not partitioned can have equal keys, so no order of their rows is total.
    IF kind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = page_columns.source) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('cannot page over %s, from which other tables inherit', page_columns.source),
            DETAIL = 'Its key says nothing about their rows, so two rows may be equal and a page may end between them.',
            HINT = 'Page over one of the tables, or use a partitioned table.';
    END IF;

    -- What tells any two rows apart: the primary key, else the smallest unique index without nulls.
    SELECT i.indexrelid INTO key_index
    FROM pg_catalog.pg_index AS i
    WHERE i.indrelid = page_columns.source AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND NOT EXISTS (
            SELECT FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS n (at)
            JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n.at]
            WHERE NOT a.attnotnull)
    ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('%s has no primary key', page_columns.source),
            DETAIL = 'Rows that are equal in all sort columns are told apart by it; without one a page may end between them.',
            HINT = 'Add a primary key, or a unique index on columns that are NOT NULL.';
    END IF;

    -- Of several shard columns the one that an index begins with: it is for reading.
    SELECT s.shard_column INTO shard_name
    FROM lanes.shard_columns AS s
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = s.source AND a.attname = s.shard_column
    WHERE s.source = page_columns.source
    ORDER BY EXISTS (
        SELECT FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = page_columns.source AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum) DESC,
        s.state = 'ready' DESC, s.shard_column LIMIT 1;

    RETURN QUERY
    SELECT a.attname, a.atttypid, a.attcollation, NOT a.attnotnull, k.at + 1, i.indcollation[k.at],
        COALESCE(a.attname = shard_name, false), EXISTS (
            SELECT FROM pg_catalog.pg_index AS l
            WHERE l.indrelid = page_columns.source AND l.indisvalid AND l.indpred IS NULL AND l.indkey[0] = a.attnum)
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_index AS i ON i.indexrelid = key_index
    LEFT JOIN LATERAL (
        SELECT n.at FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS n (at) WHERE i.indkey[n.at] = a.attnum) AS k ON true
    WHERE a.attrelid = page_columns.source AND a.attnum > 0 AND NOT a.attisdropped;
END
$$;
COMMENT ON FUNCTION lanes.page_columns(regclass) IS
    'The columns of a table, its key, its shard column and which columns an index begins with: what lanes.page has to know. A part of it';

-- With the caller's rights, whatever the table's policies call: so not parallel.
CREATE FUNCTION lanes.page(row_type anyelement, order_by text DEFAULT NULL, page_size int DEFAULT 100, filter jsonb DEFAULT NULL,
                           cursor text DEFAULT NULL, time_from timestamptz DEFAULT NULL, time_to timestamptz DEFAULT NULL,
                           shard_column name DEFAULT NULL)
    RETURNS TABLE (item anyelement, cursor text)
    STABLE PARALLEL UNSAFE COST 1000 ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'page_wrapper';
COMMENT ON FUNCTION lanes.page(anyelement, text, int, jsonb, text, timestamptz, timestamptz, name) IS
    'One page of a table''s rows, in order over all its row shards: first without a cursor, then with the one of the last row, which is null at the end. A deep page costs what the first does, given the index that lanes.page_index names';

CREATE FUNCTION lanes.page_index(row_type anyelement, order_by text DEFAULT NULL, filter jsonb DEFAULT NULL, shard_column name DEFAULT NULL)
    RETURNS text
    STABLE PARALLEL RESTRICTED COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'page_index_wrapper';
COMMENT ON FUNCTION lanes.page_index(anyelement, text, jsonb, name) IS
    'The statement that makes the index that lanes.page wants for this order: shard column, columns that the filter holds fixed, sort columns';

-- Counters: names that hold quotes, calls that wait while the number of shards is lowered, keys with rows above it only.
CREATE OR REPLACE FUNCTION lanes.write_counter_functions(counter regclass, spread text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts     record;
    types     text[];
    reserved  int;
    -- A name may contain any quote that could be known, and whoever owns the table has chosen the names.
    quote     CONSTANT text := '$b' || pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', '') || '$';
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
    -- Those of the two that are not there yet.
    made      text[];
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
    made := ARRAY(
        SELECT f.name FROM pg_catalog.unnest(ARRAY[add, add_many]) AS f (name) WHERE pg_catalog.to_regproc(f.name) IS NULL);

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

    EXECUTE pg_catalog.format(pg_catalog.replace($template$
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
$template$, '$body$', quote),
        add, pg_catalog.array_to_string(arguments, ', '), checks, place,
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(k.name), ', ') FROM pg_catalog.unnest(parts.keys) AS k (name)),
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n.name), ', ') FROM pg_catalog.unnest(parts.counters) AS n (name)),
        (SELECT pg_catalog.string_agg('$' || i, ', ') FROM pg_catalog.generate_series(1, pg_catalog.cardinality(parts.keys)) AS i),
        shard,
        (SELECT pg_catalog.string_agg('$' || i, ', ')
         FROM pg_catalog.generate_series(pg_catalog.cardinality(parts.keys) + 1, reserved - 1) AS i),
        parts.constraint_name, added);

    -- One row a key, in the order of the keys, whatever order they came in: overlapping calls cannot deadlock.
    EXECUTE pg_catalog.format(pg_catalog.replace($template$
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
$template$, '$body$', quote),
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

    -- Both write, so nobody has them unasked; what their owner granted since stays.
    IF made <> '{}' THEN
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', pg_catalog.array_to_string(made, ', '));
    END IF;
    EXECUTE pg_catalog.format('COMMENT ON FUNCTION %s IS %L', add, pg_catalog.format(
        'Adds to one row of sharded counter %s, chosen by spread if given, else by %s',
        write_counter_functions.counter, write_counter_functions.spread));
    EXECUTE pg_catalog.format('COMMENT ON FUNCTION %s IS %L', add_many, pg_catalog.format(
        'Adds to one row of sharded counter %s for each of many keys, in the order of the keys so that calls cannot deadlock',
        write_counter_functions.counter));
END
$$;

CREATE OR REPLACE FUNCTION lanes.create_sharded_counter_in(name text, key_columns text[], counters text[], shards int, spread text,
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
        'PRIMARY KEY (%s, shard_id), CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND (shard_id < %s OR shard_id < 4096))) '
        'WITH (fillfactor = 50)',
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

CREATE OR REPLACE FUNCTION lanes.set_counter_shards(counter regclass, shards int, spread text DEFAULT 'backend') RETURNS void
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
    -- Rows above a lower number stay, and count, until their key is folded. Calls that wait for the table meanwhile have
    -- chosen their row by the old number, and write it.
    EXECUTE pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT shard_id_range, '
        'ADD CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND (shard_id < %s OR shard_id < 4096)) NOT VALID',
        set_counter_shards.counter, set_counter_shards.shards);
    PERFORM lanes.write_counter_functions(set_counter_shards.counter, set_counter_shards.spread);
END
$$;

CREATE OR REPLACE FUNCTION lanes.compact_counter(counter regclass, cold_after interval DEFAULT '1 hour', most_keys int DEFAULT 1000)
    RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts   record;
    writable_shards int;
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
    -- The last number in the check; in counters of 0.3.0 and before it is the number of shards.
    SELECT pg_catalog.substring(pg_catalog.pg_get_constraintdef(k.oid), '([0-9]+)[^0-9]*$')::int INTO writable_shards
    FROM pg_catalog.pg_constraint AS k
    WHERE k.conrelid = compact_counter.counter AND k.contype = 'c' AND k.conname = 'shard_id_range';
    -- Any set of locked rows of one key may be folded into one of them: the sum is the same. What somebody else has
    -- locked, or adds meanwhile, is passed over, so this never waits for a writer and cannot be part of a deadlock.
    -- Sums that do not fit one row stay as they are; so do keys of which the check lets no row be written, and they are
    -- not counted among the most keys, or those behind them would never be reached.
    EXECUTE pg_catalog.format($template$
WITH cold AS (
    SELECT %1$s FROM %2$s AS c GROUP BY %1$s
    HAVING pg_catalog.count(*) > 1 AND pg_catalog.max(c.bumped_at) < pg_catalog.clock_timestamp() - $1
        AND pg_catalog.min(c.shard_id) < %6$s AND %7$s
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
        writable_shards,
        (SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.sum(c.%I) BETWEEN -9223372036854775808 AND 9223372036854775807', n.name), ' AND ')
         FROM pg_catalog.unnest(parts.counters) AS n (name)))
    INTO removed USING compact_counter.cold_after, compact_counter.most_keys;
    RETURN removed;
END
$$;

-- Shard columns: triggers that are like theirs, but with other arguments; a backfill and a drop that come together.
CREATE OR REPLACE VIEW lanes.shard_columns AS
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
            pg_catalog.getdatabaseencoding()) AS number
    FROM ended AS e
), numbered AS (
    -- Anybody can make such a trigger on a table of his own, with any arguments.
    SELECT m.tgrelid, m.tgname, m.key, m.shard_column,
        CASE WHEN m.number ~ '^[1-9][0-9]{0,9}$' THEN CASE WHEN m.number::bigint <= 2147483647 THEN m.number::int END END AS shards
    FROM named AS m
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
FROM numbered AS n
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = n.tgrelid AND a.attname = n.shard_column AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_constraint AS k ON k.conrelid = n.tgrelid AND k.contype = 'c' AND k.conname = n.tgname
LEFT JOIN lanes.shard_backfill AS b ON b.source::oid = n.tgrelid AND b.shard_column = n.shard_column
WHERE n.shards IS NOT NULL;

CREATE OR REPLACE FUNCTION lanes.fill_shard_batch(source regclass, shard_column name, batch int) RETURNS boolean
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
    -- First the table, then its row of shard_backfill, as drop_shard_column takes them: so the two cannot deadlock, and
    -- who has the table alone sees the row of every backfill. Only now is it certain that the column is there.
    EXECUTE pg_catalog.format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', present.source);
    present := lanes.find_shard_column(fill_shard_batch.source, fill_shard_batch.shard_column);
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

CREATE OR REPLACE FUNCTION lanes.drop_shard_column(source regclass, shard_column name DEFAULT 'shard_id', lock_timeout interval DEFAULT '2 s')
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
    -- No backfill has locked it: it would hold the table too.
    DELETE FROM lanes.shard_backfill AS b
    WHERE b.source = drop_shard_column.source AND b.shard_column = drop_shard_column.shard_column;
END
$$;

-- Requests of people lock what they need in the order in which a change of the map does.
CREATE OR REPLACE FUNCTION lanes.retry(projection text, key text DEFAULT NULL) RETURNS int
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(retry.projection);
    asked   int;
BEGIN
    -- In the order in which a change of the map locks them, too.
    PERFORM FROM lanes.parked_key AS k
    WHERE k.projection = defined.name AND k.version = defined.version
      AND (retry.key IS NULL OR k.key = retry.key)
    ORDER BY k.key, k.key_hash FOR UPDATE;
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

CREATE OR REPLACE FUNCTION lanes.skip(projection text, "position" bigint, reason text) RETURNS boolean
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
    -- No batch, no retry and no change of the map runs meanwhile. The projection first, as changes of the map do: a worker
    -- that has just made one holds lanes and wants its own.
    PERFORM FROM lanes.projection AS p WHERE p.name = defined.name AND p.version = defined.version FOR NO KEY UPDATE;
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

-- Of lanes with ticks.
CREATE OR REPLACE FUNCTION lanes.stop_at_event(projection text, lane int, epoch bigint, "position" bigint, reason text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked lanes.checkpoint := lanes.lock_lane(stop_at_event.projection, stop_at_event.lane, stop_at_event.epoch);
BEGIN
    PERFORM lanes.stop_lane(stop_at_event.projection, stop_at_event.lane, stop_at_event.epoch, stop_at_event.reason);
    UPDATE lanes.checkpoint AS c
    SET failed_position = stop_at_event."position"
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane
      -- (Within ticks a later event may have a lower position.)
      AND (c.tick > 0 OR c."position" < stop_at_event."position");
END
$$;

CREATE OR REPLACE FUNCTION lanes.skips_ahead(projection text, lane int)
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
      AND (c.tick > 0 OR s."position" > c."position") AND s.event_type IS NULL
    ORDER BY s."position";
END
$$;
