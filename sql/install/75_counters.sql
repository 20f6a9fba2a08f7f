-- Sharded counters: a table with several rows a key, functions that add to one of them, and a view of the totals.
--
-- The table, its view and its functions are the user's: nothing here owns or remembers them. What the other functions
-- must know of a counter stands in its own constraints. The check of shard_id names the number of shards, but lets through
-- any that a counter could ever have had: a call that chose its row before the number was lowered still writes it. Any row
-- of a key may be negative or absent; only the sum means something, so floors and ceilings are the view's. Every statement
-- takes row locks in the order of the primary key.

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
    -- Rows above a lower number stay, and count, until their key is folded. Calls that wait for the table meanwhile have
    -- chosen their row by the old number, and write it.
    EXECUTE pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT shard_id_range, '
        'ADD CONSTRAINT shard_id_range CHECK (shard_id >= 0 AND (shard_id < %s OR shard_id < 4096)) NOT VALID',
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
COMMENT ON FUNCTION lanes.compact_counter(regclass, interval, int) IS
    'Folds the rows of keys that nobody wrote for a while into one row each, while writers go on; returns how many rows went, so call it until it returns 0';
REVOKE ALL ON FUNCTION lanes.compact_counter(regclass, interval, int) FROM PUBLIC;
