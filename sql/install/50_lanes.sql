-- Owning a lane: claim, release, and the batch.
--
-- LANE-1 rests on two things alone: every batch first locks the lane's row, then checks the epoch, which every claim
-- has raised under that same lock. LANE-2: begin_batch or claim_batch opens and commit_batch ends one transaction, in
-- which the worker writes its rows. The functions are not STRICT: a null argument must be an error, not an answer
-- without rows.
--
-- In the session form (claim, begin_batch, release) a session owns a lane for as long as it likes and holds its advisory
-- lock. In the transaction form (claim_batch) a transaction does, for one batch, with the same lock: what works behind a
-- pooler that gives each transaction another session. The lock and the lease only decide who tries.

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
REVOKE ALL ON FUNCTION lanes.lock_lane(text, int, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.session_started_at() RETURNS timestamptz
    STABLE PARALLEL RESTRICTED COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'session_started_at_wrapper';
COMMENT ON FUNCTION lanes.session_started_at() IS
    'When this session began: tells it from an earlier one with the same process id';

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
REVOKE ALL ON FUNCTION lanes.release(text, int, bigint) FROM PUBLIC;

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
    SET stopped_at = pg_catalog.clock_timestamp(), stopped_reason = stop_lane.reason, stopped_state = 'stopped'
    WHERE c.projection = locked.projection AND c.version = locked.version AND c.lane = locked.lane;
END
$$;
COMMENT ON FUNCTION lanes.stop_lane(text, int, bigint, text) IS
    'Records why a lane''s owner cannot go on, for lanes.status; the next batch or claim clears it';
REVOKE ALL ON FUNCTION lanes.stop_lane(text, int, bigint, text) FROM PUBLIC;

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
