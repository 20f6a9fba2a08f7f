-- docs/SQL.md: every object of the extension, with its comment, as the catalog has it.
WITH member AS (
    SELECT d.classid, d.objid
    FROM pg_depend AS d
    WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
        AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
), routine AS (
    SELECT p.oid, n.nspname, p.proname, p.prokind, p.provolatile, p.proacl,
        CASE WHEN n.nspname = 'lanes' THEN 'lanes.' ELSE '' END || p.proname || '(' || pg_get_function_arguments(p.oid) || ')' AS call,
        pg_get_function_result(p.oid) AS result,
        -- The same function for several types of argument is one entry.
        dense_rank() OVER (ORDER BY n.nspname = 'lanes', p.proname COLLATE "C") AS place
    FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
    JOIN pg_namespace AS n ON n.oid = p.pronamespace
), routine_text AS (
    SELECT place, bool_or(nspname = 'lanes') AS stateful, format(
        E'### `%s`\n\n```\n%s\n```\n\n%s.\n\n%s; %s.\n',
        CASE WHEN bool_or(nspname = 'lanes') THEN 'lanes.' ELSE '' END || min(proname),
        string_agg(call || COALESCE(' -> ' || result, ''), E'\n' ORDER BY call COLLATE "C"),
        string_agg(DISTINCT obj_description(oid, 'pg_proc'), E'.\n'),
        CASE WHEN bool_or(prokind = 'p') THEN 'Procedure' ELSE
            CASE min(provolatile) WHEN 'i' THEN 'Immutable' WHEN 's' THEN 'Stable' ELSE 'Volatile' END END,
        CASE WHEN bool_and(proacl IS NULL) THEN 'everybody may call it' ELSE 'EXECUTE is to be granted' END) AS text
    FROM routine GROUP BY place
), relation_text AS (
    SELECT c.relkind, c.relname, format(E'### `lanes.%s`\n\n%s.\n\n| column | type | |\n|---|---|---|\n%s\n', c.relname,
        obj_description(c.oid, 'pg_class'),
        string_agg(format('| `%s` | `%s` | %s |', a.attname, format_type(a.atttypid, a.atttypmod), col_description(c.oid, a.attnum)),
            E'\n' ORDER BY a.attnum)) AS text
    FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind IN ('r', 'v')
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY c.oid, c.relkind, c.relname
), part AS (
    SELECT 0 AS chapter, 0::bigint AS place, ''::text AS name, format(
        E'# SQL reference\n\nWritten by `make docs` from the catalog of version %s. How to use the tools: SQL_TOOLS.md.\n\n## Functions without state\n\n'
        'In the schema of CREATE EXTENSION.\n', extversion) AS text FROM pg_extension WHERE extname = 'pg_lanes'
    UNION ALL SELECT 1, place, '', text FROM routine_text WHERE NOT stateful
    UNION ALL SELECT 2, 0, '', E'## Functions and procedures\n'
    UNION ALL SELECT 3, place, '', text FROM routine_text WHERE stateful
    UNION ALL SELECT 4, 0, '', E'## Views\n'
    UNION ALL SELECT 5, 0, relname, text FROM relation_text WHERE relkind = 'v'
    UNION ALL SELECT 6, 0, '', E'## Tables\n'
    UNION ALL SELECT 7, 0, relname, text FROM relation_text WHERE relkind = 'r'
)
SELECT text FROM part ORDER BY chapter, place, name COLLATE "C";
