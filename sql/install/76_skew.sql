-- How evenly rows and writes are spread over the row shards of a table.

CREATE FUNCTION lanes.skew(source regclass, shard_column name DEFAULT 'shard_id', shards int DEFAULT NULL)
    RETURNS TABLE (shard int, "rows" bigint, writes bigint, share numeric, verdict text)
    STABLE PARALLEL SAFE ROWS 16 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- What is a shard's share is a matter of chance, so only what chance cannot explain is called hot: this many times
    -- the share, and this many standard deviations above it.
    hot_factor     CONSTANT numeric := 2;
    hot_deviations CONSTANT numeric := 5;
    -- A key with this many writes a shard would have rows in several shards if anything spread them.
    busy_writes    CONSTANT int := 8;
    shard_count int := skew.shards;
    is_counter  boolean;
    parts       record;
    one_row     boolean := false;
BEGIN
    IF skew.source IS NULL OR skew.shard_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'source and shard_column must not be null';
    ELSIF skew.shards < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('number of shards must be at least 1, not %s', skew.shards);
    ELSIF NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = skew.source AND a.attname = skew.shard_column AND a.attnum > 0 AND NOT a.attisdropped)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_column',
            MESSAGE = pg_catalog.format('column "%s" of relation %s does not exist', skew.shard_column, skew.source),
            HINT = 'Pass the table and the name of the column that holds its row shard.';
    END IF;

    is_counter := EXISTS (
        SELECT FROM pg_catalog.pg_constraint AS k
        WHERE k.conrelid = skew.source AND k.contype = 'c' AND k.conname = 'shard_id_range');
    IF is_counter THEN
        parts := lanes.counter_parts(skew.source);
        shard_count := COALESCE(shard_count, parts.shards);
        EXECUTE pg_catalog.format(
            'SELECT COALESCE(pg_catalog.bool_and(k.is_single), false) FROM ('
            'SELECT pg_catalog.count(*) = 1 AS is_single FROM %s AS c GROUP BY %s HAVING pg_catalog.sum(c.bumps) >= $1) AS k',
            skew.source,
            (SELECT pg_catalog.string_agg(pg_catalog.format('c.%I', n.name), ', ') FROM pg_catalog.unnest(parts.keys) AS n (name)))
        INTO one_row USING shard_count * busy_writes;
        one_row := one_row AND shard_count > 1;
    END IF;

    RETURN QUERY EXECUTE pg_catalog.format($template$
WITH found AS (
    SELECT c.%1$I::int AS shard, pg_catalog.count(*) AS rows, %3$s AS writes FROM %2$s AS c WHERE c.%1$I IS NOT NULL GROUP BY 1
), listed AS (
    SELECT n.shard, COALESCE(f.rows, 0) AS rows, CASE WHEN $2 THEN COALESCE(f.writes, 0) END AS writes
    FROM pg_catalog.generate_series(0, GREATEST($1, (SELECT pg_catalog.max(m.shard) + 1 FROM found AS m)) - 1) AS n (shard)
    LEFT JOIN found AS f ON f.shard = n.shard
), weighed AS (
    SELECT l.*, COALESCE(l.writes, l.rows)::numeric AS weight,
        pg_catalog.sum(COALESCE(l.writes, l.rows)) OVER () AS total,
        pg_catalog.sum(COALESCE(l.writes, l.rows)) OVER () / pg_catalog.count(*) OVER () AS fair
    FROM listed AS l
)
SELECT w.shard, w.rows, w.writes, pg_catalog.round(w.weight / NULLIF(w.total, 0), 4),
    CASE WHEN $3 THEN 'one row a key: what spreads the writes follows the key, or one session does them all'
        WHEN w.weight > w.fair * $4 AND w.weight - w.fair > $5 * pg_catalog.sqrt(w.fair)
            THEN pg_catalog.format('hot: %%s times its share; few values spread the writes, or one of them has most',
                pg_catalog.round(w.weight / w.fair, 1))
        WHEN w.rows = 0 THEN 'empty' ELSE 'even' END
FROM weighed AS w ORDER BY w.shard$template$,
        skew.shard_column, skew.source, CASE WHEN is_counter THEN 'pg_catalog.sum(c.bumps)::bigint' ELSE 'NULL::bigint' END)
    USING shard_count, is_counter, one_row, hot_factor, hot_deviations;
END
$$;
COMMENT ON FUNCTION lanes.skew(regclass, name, int) IS
    'Rows and (for sharded counters) writes of each row shard of a table, its share of them, and whether chance alone explains it';
