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
    tick         bigint      NOT NULL DEFAULT 0,
    CONSTRAINT parked_event_key PRIMARY KEY (projection, version, slot, key_hash, "position"),
    CONSTRAINT parked_event_projection FOREIGN KEY (projection, version) REFERENCES lanes.projection ON DELETE CASCADE,
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
COMMENT ON COLUMN lanes.parked_event.tick IS 'With position, the event''s place: the tick of an events table; 0 in a log of ingestd';
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
    WHERE k.projection = defined.name AND k.version = defined.version AND defined.slot_lanes[k.slot + 1] = parked_keys.lane
    ORDER BY k.next_try_at NULLS LAST, k.slot, k.key;
END
$$;
COMMENT ON FUNCTION lanes.parked_keys(text, int) IS
    'The parked keys of a lane''s slots, and in how many milliseconds each is tried again (null: when it is asked for). After begin_batch in its transaction nobody else changes them';
REVOKE ALL ON FUNCTION lanes.parked_keys(text, int) FROM PUBLIC;

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
      -- (Within ticks a later event may have a lower position.)
      AND (c.tick > 0 OR c."position" < stop_at_event."position");
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
      AND (c.tick > 0 OR s."position" > c."position") AND s.event_type IS NULL
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
COMMENT ON FUNCTION lanes.skip(text, bigint, text) IS
    'Says that an event is never to be applied: one that is parked, or at which a lane stands. What waits behind it is tried again at once. The row in lanes.skipped_event is the audit; false if there is one already';
REVOKE ALL ON FUNCTION lanes.skip(text, bigint, text) FROM PUBLIC;
