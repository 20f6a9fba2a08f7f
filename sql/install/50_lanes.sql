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
