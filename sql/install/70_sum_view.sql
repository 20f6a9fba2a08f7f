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
    used        text[] := '{}';
    columns     text[] := '{}';
    keys        text[] := '{}';
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
