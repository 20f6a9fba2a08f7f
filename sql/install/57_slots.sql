-- The map of slots to lanes, and its changes while workers go on.
--
-- A split is done at once: the new lane begins where its parent stands. Any other change makes the lanes that it
-- involves stop at one place, the greatest of theirs; when all stand there, the map is changed. So no event is applied
-- twice and none is passed over, whatever moves where (LANE-3, LANE-4). Which slots move is worked out in the library;
-- here rows are locked, the projection's first (not its key, which parked keys of running batches refer to), then lanes
-- in the order of their numbers.

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
