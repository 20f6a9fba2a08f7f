-- A table of events in this database as a log.
--
-- Transactions commit in another order than they draw positions in, so "greater than the last position" passes events
-- over. Ticks do not: each stores a snapshot, and an event belongs to the first tick whose snapshot shows it. What lies
-- between two ticks never changes, no transaction that stays open holds anything back, and since who has seen one event
-- appends the next with a greater position and in no earlier tick, (tick, position) keeps the order of every key. (PgQ
-- tells batches of queues apart in this way; here ticks order a log that stays.)
--
-- A transaction id means something in its own cluster only: after dump and restore, lanes.rebase begins anew.

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
