-- HASH-1 and HASH-2: the vectors of core/testdata, through SQL.
\set lane_vectors `cat "$PG_ABS_SRCDIR/../../core/testdata/lane_v1.tsv"`
\set lock_key_vectors `cat "$PG_ABS_SRCDIR/../../core/testdata/lock_key_v1.tsv"`
\set fnv_vectors `cat "$PG_ABS_SRCDIR/../../core/testdata/fnv1a_64.tsv"`
\set murmur_vectors `cat "$PG_ABS_SRCDIR/../../core/testdata/murmur3_x86_32.tsv"`

-- The fields of the lines that are not comments.
CREATE FUNCTION pg_temp.vectors(content text) RETURNS SETOF text[] LANGUAGE sql
    AS $$ SELECT string_to_array(line, E'\t') FROM string_to_table(content, E'\n') AS line WHERE line NOT LIKE '#%' $$;

CREATE TEMP TABLE expected AS
    SELECT v[1] AS kind, v[2] AS key, v[4]::int AS n, v[5]::int AS modulo, v[6]::int AS consistent, v[7]::int AS shard
    FROM pg_temp.vectors(:'lane_vectors') AS v;

CREATE TEMP VIEW actual AS
    SELECT kind, key, n, lane_of(key, n) AS lane, lane_of(key, n, 'modulo') AS modulo,
        lane_of(key, n, 'consistent') AS consistent, shard(key, n) AS shard
    FROM expected WHERE kind = 'text'
    UNION ALL
    SELECT kind, key, n, lane_of(key::uuid, n), lane_of(key::uuid, n, 'modulo'),
        lane_of(key::uuid, n, 'consistent'), shard(key::uuid, n)
    FROM (SELECT * FROM expected WHERE kind = 'uuid' OFFSET 0) AS e
    UNION ALL
    SELECT kind, key, n, lane_of(key::bigint, n), lane_of(key::bigint, n, 'modulo'),
        lane_of(key::bigint, n, 'consistent'), shard(key::bigint, n)
    FROM (SELECT * FROM expected WHERE kind = 'bigint' OFFSET 0) AS e
    UNION ALL
    SELECT kind, key, n, lane_of(key::int, n), lane_of(key::int, n, 'modulo'),
        lane_of(key::int, n, 'consistent'), shard(key::int, n)
    FROM (SELECT * FROM expected WHERE kind = 'int' OFFSET 0) AS e
    UNION ALL
    SELECT kind, key, n, lane_of(key::smallint, n), lane_of(key::smallint, n, 'modulo'),
        lane_of(key::smallint, n, 'consistent'), shard(key::smallint, n)
    FROM (SELECT * FROM expected WHERE kind = 'smallint' OFFSET 0) AS e
    UNION ALL
    SELECT kind, key, n, lane_of(decode(key, 'hex'), n), lane_of(decode(key, 'hex'), n, 'modulo'),
        lane_of(decode(key, 'hex'), n, 'consistent'), shard(decode(key, 'hex'), n)
    FROM (SELECT * FROM expected WHERE kind = 'bytea' OFFSET 0) AS e;

-- As many of each kind as the file has, and no answer that differs.
SELECT kind, count(*) FROM expected JOIN actual USING (kind, key, n) GROUP BY kind ORDER BY kind;
SELECT * FROM expected AS e JOIN actual AS a USING (kind, key, n)
WHERE (e.modulo, e.modulo, e.consistent, e.shard) IS DISTINCT FROM (a.lane, a.modulo, a.consistent, a.shard);

-- The functions' published vectors: lane_of is FNV-1a 64 modulo n, shard is MurmurHash3 x86 32 (seed 0) modulo n.
CREATE FUNCTION pg_temp.unsigned(hex text) RETURNS numeric LANGUAGE sql
    AS $$ SELECT sum(('x' || lpad(substr(hex, i, 1), 8, '0'))::bit(32)::int * 16::numeric ^ (length(hex) - i))
          FROM generate_series(1, length(hex)) AS i $$;
SELECT count(*) AS compared, count(*) FILTER (WHERE lane_of(decode(v[1], 'hex'), n) <> pg_temp.unsigned(v[2]) % n) AS wrong
FROM pg_temp.vectors(:'fnv_vectors') AS v, (VALUES (7), (1024), (2147483647)) AS counts (n);
SELECT count(*) AS compared, count(*) FILTER (WHERE shard(decode(v[1], 'hex'), n) <> pg_temp.unsigned(v[3]) % n) AS wrong
FROM pg_temp.vectors(:'murmur_vectors') AS v, (VALUES (7), (1024), (2147483647)) AS counts (n)
WHERE v[2] = '00000000';

-- Names and lock keys of checkpoints.
SELECT count(*) AS compared,
    count(*) FILTER (WHERE checkpoint_name(v[1], v[2]::int) <> v[3]) AS wrong_name,
    count(*) FILTER (WHERE lanes.lock_key(v[1], v[2]::int) <> v[4]::bigint) AS wrong_key
FROM pg_temp.vectors(:'lock_key_vectors') AS v;

-- HASH-2: one id, one answer, in whatever type it comes.
SELECT lane_of(42::smallint, 1000) = lane_of('42'::text, 1000) AS smallint,
    lane_of(42::int, 1000) = lane_of('42'::text, 1000) AS int,
    lane_of(42::bigint, 1000) = lane_of('42'::text, 1000) AS bigint,
    lane_of('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, 1000)
        = lane_of('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::text, 1000) AS uuid,
    lane_of('order-42'::bytea, 1000) = lane_of('order-42'::text, 1000) AS bytea;

-- However the value is stored: short, long, compressed, out of line.
CREATE TEMP TABLE stored (key text, raw bytea);
INSERT INTO stored SELECT repeat('x', n), convert_to(repeat('x', n), 'UTF8') FROM (VALUES (1), (126), (127), (5000), (200000)) AS v (n);
ALTER TABLE stored ALTER key SET STORAGE EXTERNAL;
INSERT INTO stored SELECT repeat('x', 200000), convert_to(repeat('x', 200000), 'UTF8');
SELECT length(key), lane_of(key, 1000000) = lane_of(repeat('x', length(key)), 1000000) AS text,
    lane_of(raw, 1000000) = lane_of(repeat('x', length(key)), 1000000) AS bytea
FROM stored ORDER BY length(key);

-- Good for indexes and parallel plans.
SELECT DISTINCT provolatile, proisstrict, proparallel FROM pg_proc WHERE proname IN ('shard', 'lane_of', 'checkpoint_name');
SELECT lane_of(NULL::text, 8), lane_of('x'::text, NULL), shard('x'::text, NULL), checkpoint_name('orders', NULL);
