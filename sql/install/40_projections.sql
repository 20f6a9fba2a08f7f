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
