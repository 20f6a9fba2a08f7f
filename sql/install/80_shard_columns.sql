-- Logical sharding of a table that is in use: a column that holds the row shard of a key, kept by a trigger.
--
-- No step rewrites the table or holds a strong lock for longer than a change of the catalog takes: the column has no
-- default, rows that were there before are filled in small transactions, and the check is validated under a lock that
-- lets everybody read and write. A strong lock is only waited for as long as lock_timeout says, since everybody else
-- queues behind who waits for it.
--
-- Invariant: once the trigger is there, a row that is written has the right shard; so a row without one is older, and
-- stands in a block that the table had then. What is done and what is not is read from the catalog, so that every step
-- can be repeated after whatever cut it off.

CREATE FUNCTION lanes.set_shard_id() RETURNS trigger
    VOLATILE PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'set_shard_id_wrapper';
COMMENT ON FUNCTION lanes.set_shard_id() IS
    'Trigger of lanes.add_shard_column: sets the shard column to shard(key, n), whatever the statement says';

-- Not dumped: after a restore a backfill begins at the first block again and passes over what is filled.
CREATE TABLE lanes.shard_backfill (
    source       regclass    NOT NULL,
    shard_column name        NOT NULL,
    file_node    oid         NOT NULL,
    blocks       bigint      NOT NULL,
    next_block   bigint      NOT NULL DEFAULT 0,
    pass         int         NOT NULL DEFAULT 1,
    rows_filled  bigint      NOT NULL DEFAULT 0,
    rows_skipped bigint      NOT NULL DEFAULT 0,
    started_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    moved_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT shard_backfill_key PRIMARY KEY (source, shard_column)
) WITH (fillfactor = 50);
COMMENT ON TABLE lanes.shard_backfill IS 'How far backfills of shard columns are; the view lanes.shard_columns shows it';
COMMENT ON COLUMN lanes.shard_backfill.source IS 'The table';
COMMENT ON COLUMN lanes.shard_backfill.shard_column IS 'Its shard column';
COMMENT ON COLUMN lanes.shard_backfill.file_node IS 'The table''s file: VACUUM FULL and its like make another, in which rows stand elsewhere';
COMMENT ON COLUMN lanes.shard_backfill.blocks IS 'Blocks that the table had when the backfill began';
COMMENT ON COLUMN lanes.shard_backfill.next_block IS 'Blocks of this pass that are done';
COMMENT ON COLUMN lanes.shard_backfill.pass IS '1, or 2 for the rows that somebody held locked in the first pass';
COMMENT ON COLUMN lanes.shard_backfill.rows_filled IS 'Rows filled so far';
COMMENT ON COLUMN lanes.shard_backfill.rows_skipped IS 'Rows that somebody held locked in the first pass';
COMMENT ON COLUMN lanes.shard_backfill.started_at IS 'When the backfill began';
COMMENT ON COLUMN lanes.shard_backfill.moved_at IS 'When it last went on';

CREATE VIEW lanes.shard_columns AS
WITH argument AS (
    -- The trigger's arguments: three strings, each ended by a zero byte.
    SELECT t.tgrelid, t.tgname, t.tgargs, POSITION('\x00'::bytea IN t.tgargs) AS first_end
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgfoid = 'lanes.set_shard_id()'::regprocedure AND t.tgnargs = 3
), split AS (
    SELECT a.tgrelid, a.tgname,
        pg_catalog.convert_from(pg_catalog.substring(a.tgargs, 1, a.first_end - 1), pg_catalog.getdatabaseencoding()) AS key,
        pg_catalog.substring(a.tgargs, a.first_end + 1) AS rest
    FROM argument AS a
), ended AS (
    SELECT s.*, POSITION('\x00'::bytea IN s.rest) AS second_end FROM split AS s
), named AS (
    SELECT e.tgrelid, e.tgname, e.key::name AS key,
        pg_catalog.convert_from(pg_catalog.substring(e.rest, 1, e.second_end - 1), pg_catalog.getdatabaseencoding())::name AS shard_column,
        pg_catalog.convert_from(pg_catalog.substring(e.rest, e.second_end + 1, pg_catalog.length(e.rest) - e.second_end - 1),
            pg_catalog.getdatabaseencoding()) AS number
    FROM ended AS e
), numbered AS (
    -- Anybody can make such a trigger on a table of his own, with any arguments.
    SELECT m.tgrelid, m.tgname, m.key, m.shard_column,
        CASE WHEN m.number ~ '^[1-9][0-9]{0,9}$' THEN CASE WHEN m.number::bigint <= 2147483647 THEN m.number::int END END AS shards
    FROM named AS m
)
SELECT
    n.tgrelid::regclass AS source,
    n.shard_column,
    n.key,
    n.shards,
    CASE
        WHEN a.attnotnull AND k.convalidated THEN 'ready'
        WHEN k.convalidated THEN 'checked'
        WHEN k.oid IS NOT NULL THEN 'filled'
        WHEN b.source IS NOT NULL THEN 'filling'
        ELSE 'added'
    END AS state,
    b.blocks,
    CASE WHEN b.pass > 1 THEN b.blocks ELSE b.next_block END AS blocks_done,
    b.rows_filled,
    b.started_at,
    b.moved_at,
    n.tgname AS trigger_name
FROM numbered AS n
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = n.tgrelid AND a.attname = n.shard_column AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_constraint AS k ON k.conrelid = n.tgrelid AND k.contype = 'c' AND k.conname = n.tgname
LEFT JOIN lanes.shard_backfill AS b ON b.source::oid = n.tgrelid AND b.shard_column = n.shard_column
WHERE n.shards IS NOT NULL;
COMMENT ON VIEW lanes.shard_columns IS 'Tables with a shard column that lanes.add_shard_column made, and how far each is';
COMMENT ON COLUMN lanes.shard_columns.source IS 'The table';
COMMENT ON COLUMN lanes.shard_columns.shard_column IS 'Its shard column';
COMMENT ON COLUMN lanes.shard_columns.key IS 'The column whose shard it is';
COMMENT ON COLUMN lanes.shard_columns.shards IS 'Number of shards, built into every value';
COMMENT ON COLUMN lanes.shard_columns.state IS 'added (new rows have it), filling, filled, checked (all rows are known to be right), ready (NOT NULL too)';
COMMENT ON COLUMN lanes.shard_columns.blocks IS 'Blocks that the table had when its backfill began; null before';
COMMENT ON COLUMN lanes.shard_columns.blocks_done IS 'Blocks that the backfill has seen';
COMMENT ON COLUMN lanes.shard_columns.rows_filled IS 'Rows that it filled';
COMMENT ON COLUMN lanes.shard_columns.started_at IS 'When it began';
COMMENT ON COLUMN lanes.shard_columns.moved_at IS 'When it last went on';
COMMENT ON COLUMN lanes.shard_columns.trigger_name IS 'Name of the trigger that keeps the column, and of the check';
-- It shows names and counts, as the catalog does to everybody.
GRANT SELECT ON lanes.shard_columns TO PUBLIC;

CREATE FUNCTION lanes.find_shard_column(source regclass, shard_column name) RETURNS lanes.shard_columns
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_column lanes.shard_columns;
BEGIN
    IF find_shard_column.source IS NULL OR find_shard_column.shard_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'source and shard_column must not be null';
    END IF;
    SELECT s.* INTO found_column FROM lanes.shard_columns AS s
    WHERE s.source = find_shard_column.source AND s.shard_column = find_shard_column.shard_column;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('table %s has no shard column "%s"', find_shard_column.source, find_shard_column.shard_column),
            HINT = 'lanes.add_shard_column adds one; lanes.shard_columns lists the ones there are.';
    END IF;
    RETURN found_column;
END
$$;
COMMENT ON FUNCTION lanes.find_shard_column(regclass, name) IS
    'The row of lanes.shard_columns for a shard column; an error if there is none';

CREATE FUNCTION lanes.run_with_lock_timeout(statement text, lock_timeout interval) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before_call CONSTANT text := pg_catalog.current_setting('lock_timeout');
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout',
        GREATEST(1, (EXTRACT(epoch FROM run_with_lock_timeout.lock_timeout) * 1000)::int)::text, true);
    -- Left by an error, the block sets the timeout back by itself.
    BEGIN
        EXECUTE run_with_lock_timeout.statement;
    EXCEPTION WHEN lock_not_available THEN
        PERFORM pg_catalog.set_config('lock_timeout', before_call, true);
        RETURN false;
    END;
    PERFORM pg_catalog.set_config('lock_timeout', before_call, true);
    RETURN true;
END
$$;
COMMENT ON FUNCTION lanes.run_with_lock_timeout(text, interval) IS
    'Runs a statement that needs a lock with the caller''s rights; false, and nothing changed, if the lock was not free in time. A part of the functions for shard columns';
REVOKE ALL ON FUNCTION lanes.run_with_lock_timeout(text, interval) FROM PUBLIC;

CREATE FUNCTION lanes.add_shard_column(source regclass, key name, shards int, shard_column name DEFAULT 'shard_id',
                                       lock_timeout interval DEFAULT '2 s')
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present    lanes.shard_columns;
    kind       "char";
    is_part    boolean;
    base_type  oid;
    not_null   boolean;
    trigger_name name;
BEGIN
    IF add_shard_column.source IS NULL OR add_shard_column.key IS NULL OR add_shard_column.shards IS NULL
        OR add_shard_column.shard_column IS NULL OR add_shard_column.lock_timeout IS NULL
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = 'arguments of lanes.add_shard_column must not be null';
    END IF;
    -- Refuses a number below 1.
    PERFORM @extschema@.shard(0, add_shard_column.shards);

    SELECT s.* INTO present FROM lanes.shard_columns AS s
    WHERE s.source = add_shard_column.source AND s.shard_column = add_shard_column.shard_column;
    IF FOUND AND present.key = add_shard_column.key AND present.shards = add_shard_column.shards THEN
        RAISE NOTICE 'table % has shard column "%" already', add_shard_column.source, add_shard_column.shard_column;
        RETURN;
    ELSIF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('shard column "%s" of table %s is shard(%I, %s), not shard(%I, %s)',
                add_shard_column.shard_column, add_shard_column.source, present.key, present.shards,
                add_shard_column.key, add_shard_column.shards),
            DETAIL = 'The number of shards is built into every row, and into every index and query that uses the column.',
            HINT = pg_catalog.format('Add a second column under another name, backfill it, let the readers use it, then drop '
                'the first: SELECT lanes.add_shard_column(%L, %L, %s, %L);', add_shard_column.source, add_shard_column.key,
                add_shard_column.shards, pg_catalog.left(add_shard_column.shard_column::text, 40) || '_' || add_shard_column.shards);
    END IF;

    SELECT c.relkind, c.relispartition OR c.relhassubclass OR EXISTS (
            SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid)
    INTO kind, is_part
    FROM pg_catalog.pg_class AS c WHERE c.oid = add_shard_column.source;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_table',
            MESSAGE = pg_catalog.format('relation with OID %s does not exist', add_shard_column.source::oid);
    ELSIF kind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'wrong_object_type',
            MESSAGE = pg_catalog.format('%s is not a table', add_shard_column.source);
    ELSIF kind = 'p' OR is_part THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('cannot add a shard column to %s, which is partitioned or inherits', add_shard_column.source),
            HINT = 'A partitioned table spreads its rows already.';
    END IF;

    SELECT a.atttypid, a.attnotnull INTO base_type, not_null
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = add_shard_column.source AND a.attname = add_shard_column.key AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_column',
            MESSAGE = pg_catalog.format('column "%s" of table %s does not exist', add_shard_column.key, add_shard_column.source);
    END IF;
    WHILE (SELECT t.typtype = 'd' FROM pg_catalog.pg_type AS t WHERE t.oid = base_type) LOOP
        SELECT t.typbasetype INTO base_type FROM pg_catalog.pg_type AS t WHERE t.oid = base_type;
    END LOOP;
    IF base_type NOT IN ('text'::regtype, 'varchar'::regtype, 'uuid'::regtype, 'int8'::regtype, 'int4'::regtype,
        'int2'::regtype, 'bytea'::regtype)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'datatype_mismatch',
            MESSAGE = pg_catalog.format('column "%s" of type %s cannot be the key of a shard', add_shard_column.key,
                pg_catalog.format_type(base_type, NULL)),
            HINT = 'A key is text, varchar, uuid, bigint, integer, smallint or bytea, because these hash the same everywhere.';
    ELSIF NOT not_null THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('column "%s" of table %s can be null, and null has no shard', add_shard_column.key, add_shard_column.source),
            HINT = pg_catalog.format('Choose another key, or ALTER TABLE %s ALTER COLUMN %I SET NOT NULL.', add_shard_column.source, add_shard_column.key);
    ELSIF EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = add_shard_column.source AND a.attname = add_shard_column.shard_column AND NOT a.attisdropped)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_column',
            MESSAGE = pg_catalog.format('column "%s" of table %s exists already', add_shard_column.shard_column, add_shard_column.source),
            HINT = 'Pass another name as shard_column.';
    ELSIF pg_catalog.octet_length(add_shard_column.shard_column::text) > 50 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'name_too_long',
            MESSAGE = pg_catalog.format('name "%s" of a shard column is longer than 50 bytes', add_shard_column.shard_column);
    END IF;

    -- Triggers fire in the order of their names, and another one may still change the key: this one is to be the last.
    trigger_name := 'zz_lanes_' || add_shard_column.shard_column;
    -- ALWAYS: also what a replica applies must get its shard.
    IF NOT lanes.run_with_lock_timeout(pg_catalog.format(
        'ALTER TABLE %1$s ADD COLUMN %2$I int; '
        'COMMENT ON COLUMN %1$s.%2$I IS %3$L; '
        'CREATE TRIGGER %4$I BEFORE INSERT OR UPDATE ON %1$s FOR EACH ROW EXECUTE FUNCTION lanes.set_shard_id(%5$L, %6$L, %7$L); '
        'ALTER TABLE %1$s ENABLE ALWAYS TRIGGER %4$I',
        add_shard_column.source, add_shard_column.shard_column,
        pg_catalog.format('Row shard of %I in 0..%s, kept by trigger %I (pg_lanes)', add_shard_column.key, add_shard_column.shards - 1, trigger_name),
        trigger_name, add_shard_column.key, add_shard_column.shard_column, add_shard_column.shards), add_shard_column.lock_timeout)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'lock_not_available',
            MESSAGE = pg_catalog.format('could not lock table %s within %s', add_shard_column.source, add_shard_column.lock_timeout),
            HINT = 'Some transaction uses it for longer. Try again when it has ended, or pass a longer lock_timeout, during which everybody else waits.';
    END IF;
END
$$;
COMMENT ON FUNCTION lanes.add_shard_column(regclass, name, int, name, interval) IS
    'Adds a column that holds shard(key, shards) of every row written from now on, without rewriting the table; CALL lanes.backfill_shard_column fills the others. Call it alone in its transaction: the table is locked until that ends';
REVOKE ALL ON FUNCTION lanes.add_shard_column(regclass, name, int, name, interval) FROM PUBLIC;

CREATE FUNCTION lanes.fill_shard_batch(source regclass, shard_column name, batch int) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- So many rows fit a block at most, roughly; a window that is looked through in one transaction must not hold many
    -- times more than a batch.
    rows_per_block CONSTANT int := 50;
    present  lanes.shard_columns := lanes.find_shard_column(fill_shard_batch.source, fill_shard_batch.shard_column);
    progress lanes.shard_backfill;
    window_blocks bigint;
    row_limit int;
    first_row tid;
    end_row   tid;
    places    tid[];
    waiting   bigint := 0;
    filled    bigint := 0;
BEGIN
    -- First the table, then its row of shard_backfill, as drop_shard_column takes them: so the two cannot deadlock, and
    -- who has the table alone sees the row of every backfill. Only now is it certain that the column is there.
    EXECUTE pg_catalog.format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', present.source);
    present := lanes.find_shard_column(fill_shard_batch.source, fill_shard_batch.shard_column);
    INSERT INTO lanes.shard_backfill AS b (source, shard_column, file_node, blocks)
    VALUES (fill_shard_batch.source, fill_shard_batch.shard_column, pg_catalog.pg_relation_filenode(fill_shard_batch.source),
        -- Counted now, when every later row has its shard from the trigger.
        pg_catalog.pg_relation_size(fill_shard_batch.source) / pg_catalog.current_setting('block_size')::bigint)
    -- In another file the rows stand elsewhere, so it begins again, and passes over what is filled.
    ON CONFLICT ON CONSTRAINT shard_backfill_key DO UPDATE
    SET file_node = EXCLUDED.file_node, blocks = EXCLUDED.blocks, next_block = 0, pass = 1, rows_skipped = 0
    WHERE b.file_node <> EXCLUDED.file_node;
    -- Two sessions that backfill one table take turns.
    SELECT b.* INTO STRICT progress FROM lanes.shard_backfill AS b
    WHERE b.source = fill_shard_batch.source AND b.shard_column = fill_shard_batch.shard_column FOR UPDATE;

    IF progress.next_block >= progress.blocks AND progress.pass = 1 AND progress.rows_skipped > 0 THEN
        progress.next_block := 0;
        progress.pass := 2;
    ELSIF progress.next_block >= progress.blocks THEN
        RETURN true;
    END IF;

    window_blocks := GREATEST(1, fill_shard_batch.batch / rows_per_block);
    first_row := pg_catalog.format('(%s,0)', progress.next_block)::tid;
    end_row := pg_catalog.format('(%s,0)', LEAST(progress.next_block + window_blocks, progress.blocks))::tid;
    -- In the first pass rows that somebody has locked are passed over: who waits while it holds locks of its own can be
    -- part of a deadlock. In the second pass one row is waited for at a time, with nothing else locked.
    row_limit := CASE progress.pass WHEN 1 THEN fill_shard_batch.batch ELSE 1 END;
    EXECUTE pg_catalog.format(
        'SELECT pg_catalog.array_agg(l.ctid) FROM (SELECT t.ctid FROM %s AS t '
        'WHERE t.ctid >= $1 AND t.ctid < $2 AND t.%I IS NULL LIMIT $3 FOR NO KEY UPDATE%s) AS l',
        fill_shard_batch.source, fill_shard_batch.shard_column, CASE progress.pass WHEN 1 THEN ' SKIP LOCKED' ELSE '' END)
    INTO places USING first_row, end_row, row_limit;
    IF places IS NOT NULL THEN
        EXECUTE pg_catalog.format('UPDATE %1$s AS t SET %2$I = @extschema@.shard(t.%3$I, %4$s) WHERE t.ctid = ANY ($1)',
            fill_shard_batch.source, fill_shard_batch.shard_column, present.key, present.shards)
        USING places;
        GET DIAGNOSTICS filled = ROW_COUNT;
    END IF;
    -- A batch that was full may have left some of its window.
    IF COALESCE(pg_catalog.cardinality(places), 0) < row_limit THEN
        IF progress.pass = 1 THEN
            EXECUTE pg_catalog.format('SELECT pg_catalog.count(*) FROM %s AS t WHERE t.ctid >= $1 AND t.ctid < $2 AND t.%I IS NULL',
                fill_shard_batch.source, fill_shard_batch.shard_column)
            INTO waiting USING first_row, end_row;
        END IF;
        progress.next_block := LEAST(progress.next_block + window_blocks, progress.blocks);
    END IF;
    UPDATE lanes.shard_backfill AS b
    SET next_block = progress.next_block, pass = progress.pass, rows_filled = b.rows_filled + filled,
        rows_skipped = b.rows_skipped + waiting, moved_at = pg_catalog.clock_timestamp()
    WHERE b.source = fill_shard_batch.source AND b.shard_column = fill_shard_batch.shard_column;
    RETURN false;
END
$$;
COMMENT ON FUNCTION lanes.fill_shard_batch(regclass, name, int) IS
    'Fills the shard column of at most batch older rows; true once all have it. A part of backfill_shard_column';
REVOKE ALL ON FUNCTION lanes.fill_shard_batch(regclass, name, int) FROM PUBLIC;

CREATE FUNCTION lanes.check_shard_column(source regclass, shard_column name) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    longest_wait CONSTANT interval := '2 s'::interval;
    present lanes.shard_columns := lanes.find_shard_column(check_shard_column.source, check_shard_column.shard_column);
BEGIN
    RETURN CASE present.state
        WHEN 'ready' THEN true
        WHEN 'checked' THEN lanes.run_with_lock_timeout(
            -- Takes the check's word, so it reads no row.
            pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', present.source, present.shard_column), longest_wait)
        WHEN 'filled' THEN lanes.run_with_lock_timeout(
            pg_catalog.format('ALTER TABLE %s VALIDATE CONSTRAINT %I', present.source, present.trigger_name), longest_wait)
        ELSE lanes.run_with_lock_timeout(
            pg_catalog.format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (%I IS NOT NULL AND %I = @extschema@.shard(%I, %s)) NOT VALID',
                present.source, present.trigger_name, present.shard_column, present.shard_column, present.key, present.shards),
            longest_wait)
    END;
END
$$;
COMMENT ON FUNCTION lanes.check_shard_column(regclass, name) IS
    'Takes the next step from a filled shard column to a checked one that is NOT NULL; false if a lock was not free in time. A part of backfill_shard_column';
REVOKE ALL ON FUNCTION lanes.check_shard_column(regclass, name) FROM PUBLIC;

-- Commits after each step, so it can have no SET clause: the path is set again after every COMMIT, and every name is
-- qualified. The first COMMIT makes it fail inside a transaction block, before it has done anything.
CREATE PROCEDURE lanes.backfill_shard_column(source regclass, batch int DEFAULT 1000, shard_column name DEFAULT 'shard_id')
    LANGUAGE plpgsql SECURITY INVOKER
AS $$
DECLARE
    most_tries CONSTANT int := 30;
    present lanes.shard_columns;
    done    boolean := false;
    tenth   bigint := 0;
    tries   int := 0;
    state_before text;
BEGIN
    COMMIT;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF backfill_shard_column.batch IS NULL OR backfill_shard_column.batch NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('batch must be from 1 to 1000000, not %s', COALESCE(backfill_shard_column.batch::pg_catalog.text, 'null')),
            HINT = 'It is how many rows are filled in one transaction.';
    END IF;
    present := lanes.find_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);

    WHILE NOT done AND present.state IN ('added', 'filling') LOOP
        done := lanes.fill_shard_batch(backfill_shard_column.source, backfill_shard_column.shard_column, backfill_shard_column.batch);
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        present := lanes.find_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);
        IF present.blocks > 0 AND present.blocks_done * 10 / present.blocks > tenth THEN
            tenth := present.blocks_done * 10 / present.blocks;
            RAISE NOTICE '%: % of % blocks seen, % rows filled', present.source, present.blocks_done, present.blocks, present.rows_filled;
        END IF;
    END LOOP;

    WHILE present.state <> 'ready' LOOP
        state_before := present.state;
        done := lanes.check_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        present := lanes.find_shard_column(backfill_shard_column.source, backfill_shard_column.shard_column);
        IF done THEN
            tries := 0;
            IF present.state NOT IN (state_before, 'ready') THEN
                RAISE NOTICE '%: shard column "%" is %', present.source, present.shard_column, present.state;
            END IF;
        ELSIF tries >= most_tries THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = pg_catalog.format('could not lock table %s in %s tries', present.source, tries),
                HINT = 'Some transaction uses it for long. Call lanes.backfill_shard_column again later: it goes on here.';
        ELSE
            tries := tries + 1;
            -- Lets those go first who queue for the table.
            PERFORM pg_catalog.pg_sleep(0.2);
        END IF;
    END LOOP;
    RAISE NOTICE USING
        MESSAGE = pg_catalog.format('%s: shard column "%s" is ready', present.source, present.shard_column),
        HINT = pg_catalog.format('To page over it, run: CREATE INDEX CONCURRENTLY ON %s (%I, ...) with the columns you sort by.',
            present.source, present.shard_column);
END
$$;
COMMENT ON PROCEDURE lanes.backfill_shard_column(regclass, int, name) IS
    'Fills a shard column in older rows, batch rows a transaction, then checks it and sets it NOT NULL. Cut off at any point, it goes on when called again';
REVOKE ALL ON PROCEDURE lanes.backfill_shard_column(regclass, int, name) FROM PUBLIC;

CREATE FUNCTION lanes.drop_shard_column(source regclass, shard_column name DEFAULT 'shard_id', lock_timeout interval DEFAULT '2 s')
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present lanes.shard_columns := lanes.find_shard_column(drop_shard_column.source, drop_shard_column.shard_column);
BEGIN
    IF drop_shard_column.lock_timeout IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'lock_timeout must not be null';
    END IF;
    IF NOT lanes.run_with_lock_timeout(pg_catalog.format(
        'DROP TRIGGER %2$I ON %1$s; ALTER TABLE %1$s DROP CONSTRAINT IF EXISTS %2$I, DROP COLUMN IF EXISTS %3$I',
        present.source, present.trigger_name, present.shard_column), drop_shard_column.lock_timeout)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'lock_not_available',
            MESSAGE = pg_catalog.format('could not lock table %s within %s', present.source, drop_shard_column.lock_timeout),
            HINT = 'Some transaction uses it for longer. Try again when it has ended, or pass a longer lock_timeout, during which everybody else waits.';
    END IF;
    -- No backfill has locked it: it would hold the table too.
    DELETE FROM lanes.shard_backfill AS b
    WHERE b.source = drop_shard_column.source AND b.shard_column = drop_shard_column.shard_column;
END
$$;
COMMENT ON FUNCTION lanes.drop_shard_column(regclass, name, interval) IS
    'Takes back lanes.add_shard_column at any point: trigger, check, column and the indexes on it. An error if a view needs the column';
REVOKE ALL ON FUNCTION lanes.drop_shard_column(regclass, name, interval) FROM PUBLIC;
