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
