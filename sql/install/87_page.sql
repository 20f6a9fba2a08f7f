-- Paging over row shards: lanes.page. The rules are in core/src/page.

-- Not dumped: a restore runs CREATE EXTENSION, which makes another key, so cursors of the first database end there.
CREATE TABLE lanes.secret (
    only_row boolean     NOT NULL DEFAULT true,
    key      bytea       NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT secret_key PRIMARY KEY (only_row),
    CONSTRAINT secret_only_row CHECK (only_row),
    CONSTRAINT secret_length CHECK (pg_catalog.octet_length(key) >= 32)
);
COMMENT ON TABLE lanes.secret IS
    'The key that signs the cursors of lanes.page. Its owner may change it at any time, which ends all cursors; nobody else needs to see it';
COMMENT ON COLUMN lanes.secret.only_row IS 'True: there is one row';
COMMENT ON COLUMN lanes.secret.key IS 'Random bytes, at least 32';
COMMENT ON COLUMN lanes.secret.made_at IS 'When the key was made';
-- Also what ALTER DEFAULT PRIVILEGES may have granted.
REVOKE ALL ON lanes.secret FROM PUBLIC;
-- A random uuid has 122 bits from the server's own source of secrets.
INSERT INTO lanes.secret (key)
SELECT pg_catalog.sha256(pg_catalog.string_agg(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), ''::bytea))
FROM pg_catalog.generate_series(1, 4);

CREATE FUNCTION lanes.page_columns(source regclass)
    RETURNS TABLE (column_name name, type_id oid, collation_id oid, is_nullable boolean, key_position int,
                   key_collation_id oid, is_shard boolean, leads_index boolean)
    STABLE PARALLEL SAFE ROWS 20 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kind       "char";
    key_index  oid;
    shard_name name;
BEGIN
    SELECT c.relkind INTO kind FROM pg_catalog.pg_class AS c WHERE c.oid = page_columns.source;
    -- Children of a table that is not partitioned can have equal keys, so no order of their rows is total.
    IF kind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = page_columns.source) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('cannot page over %s, from which other tables inherit', page_columns.source),
            DETAIL = 'Its key says nothing about their rows, so two rows may be equal and a page may end between them.',
            HINT = 'Page over one of the tables, or use a partitioned table.';
    END IF;

    -- What tells any two rows apart: the primary key, else the smallest unique index without nulls.
    SELECT i.indexrelid INTO key_index
    FROM pg_catalog.pg_index AS i
    WHERE i.indrelid = page_columns.source AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND NOT EXISTS (
            SELECT FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS n (at)
            JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n.at]
            WHERE NOT a.attnotnull)
    ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('%s has no primary key', page_columns.source),
            DETAIL = 'Rows that are equal in all sort columns are told apart by it; without one a page may end between them.',
            HINT = 'Add a primary key, or a unique index on columns that are NOT NULL.';
    END IF;

    -- Of several shard columns the one that an index begins with: it is for reading.
    SELECT s.shard_column INTO shard_name
    FROM lanes.shard_columns AS s
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = s.source AND a.attname = s.shard_column
    WHERE s.source = page_columns.source
    ORDER BY EXISTS (
        SELECT FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = page_columns.source AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum) DESC,
        s.state = 'ready' DESC, s.shard_column LIMIT 1;

    RETURN QUERY
    SELECT a.attname, a.atttypid, a.attcollation, NOT a.attnotnull, k.at + 1, i.indcollation[k.at],
        COALESCE(a.attname = shard_name, false), EXISTS (
            SELECT FROM pg_catalog.pg_index AS l
            WHERE l.indrelid = page_columns.source AND l.indisvalid AND l.indpred IS NULL AND l.indkey[0] = a.attnum)
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_index AS i ON i.indexrelid = key_index
    LEFT JOIN LATERAL (
        SELECT n.at FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS n (at) WHERE i.indkey[n.at] = a.attnum) AS k ON true
    WHERE a.attrelid = page_columns.source AND a.attnum > 0 AND NOT a.attisdropped;
END
$$;
COMMENT ON FUNCTION lanes.page_columns(regclass) IS
    'The columns of a table, its key, its shard column and which columns an index begins with: what lanes.page has to know. A part of it';

-- With the caller's rights, whatever the table's policies call: so not parallel.
CREATE FUNCTION lanes.page(row_type anyelement, order_by text DEFAULT NULL, page_size int DEFAULT 100, filter jsonb DEFAULT NULL,
                           cursor text DEFAULT NULL, time_from timestamptz DEFAULT NULL, time_to timestamptz DEFAULT NULL,
                           shard_column name DEFAULT NULL)
    RETURNS TABLE (item anyelement, cursor text)
    STABLE PARALLEL UNSAFE COST 1000 ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'page_wrapper';
COMMENT ON FUNCTION lanes.page(anyelement, text, int, jsonb, text, timestamptz, timestamptz, name) IS
    'One page of a table''s rows, in order over all its row shards: first without a cursor, then with the one of the last row, which is null at the end. A deep page costs what the first does, given the index that lanes.page_index names';

CREATE FUNCTION lanes.page_index(row_type anyelement, order_by text DEFAULT NULL, filter jsonb DEFAULT NULL, shard_column name DEFAULT NULL)
    RETURNS text
    STABLE PARALLEL RESTRICTED COST 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'page_index_wrapper';
COMMENT ON FUNCTION lanes.page_index(anyelement, text, jsonb, name) IS
    'The statement that makes the index that lanes.page wants for this order: shard column, columns that the filter holds fixed, sort columns';
