-- Every object of the extension says what it is: no row here.
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
FROM pg_depend AS d
WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
    AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
    AND d.classid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_namespace'::regclass)
    AND obj_description(d.objid, d.classid::regclass::name) IS NULL;
-- Columns too.
SELECT c.oid::regclass AS relation, a.attname AS without_comment
FROM pg_depend AS d
JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', 'v')
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
    AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
    AND col_description(c.oid, a.attnum) IS NULL;
-- Tables with state go into dumps.
SELECT c.oid::regclass FROM pg_extension AS e, unnest(e.extconfig, e.extcondition) AS x (id, condition)
JOIN pg_class AS c ON c.oid = x.id
WHERE e.extname = 'pg_lanes' AND x.condition = '' ORDER BY c.relname;
