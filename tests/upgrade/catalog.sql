-- Everything of the extension in the catalog, one fact a line: the same after CREATE EXTENSION and after an upgrade.
-- Privileges of roles named upgrade_… are the test's own and left out.
WITH member AS (
    SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS name
    FROM pg_depend AS d
    WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
        AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
), relation AS (
    SELECT c.*, m.name FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
), acl AS (
    -- Without a grant there is no list, and with one there is the owner's entry as well.
    SELECT name, 0 AS place, COALESCE(relacl, acldefault('r', relowner)) AS acl FROM relation
    UNION ALL SELECT r.name, a.attnum, a.attacl FROM relation AS r JOIN pg_attribute AS a ON a.attrelid = r.oid
    UNION ALL SELECT m.name, 0, COALESCE(p.proacl, acldefault('f', p.proowner)) FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
    UNION ALL SELECT m.name, 0, COALESCE(n.nspacl, acldefault('n', n.nspowner)) FROM member AS m JOIN pg_namespace AS n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
    UNION ALL SELECT m.name, 0, COALESCE(t.typacl, acldefault('T', t.typowner)) FROM member AS m JOIN pg_type AS t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
), fact (line) AS (
    SELECT 'member ' || name FROM member
    UNION ALL SELECT format('comment %s %s: %s', m.name, d.objsubid, d.description)
    FROM member AS m JOIN pg_description AS d ON d.classoid = m.classid AND d.objoid = m.objid
    UNION ALL SELECT format('function %s owner %s cost %s rows %s: %s %s', m.name, p.proowner::regrole, p.procost, p.prorows, pg_get_functiondef(p.oid), p.prosrc)
    FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
    UNION ALL SELECT format('relation %s kind %s owner %s options %s persistence %s row security %s', name, relkind, relowner::regrole, reloptions, relpersistence, relrowsecurity) FROM relation
    UNION ALL SELECT format('column %s %s %s: %s %s collation %s default %s storage %s', r.name,
        row_number() OVER (PARTITION BY r.oid ORDER BY a.attnum), a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attcollation::regcollation, pg_get_expr(e.adbin, e.adrelid), a.attstorage)
    FROM relation AS r JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS e ON e.adrelid = r.oid AND e.adnum = a.attnum
    UNION ALL SELECT format('constraint %s %s: %s', r.name, c.conname, pg_get_constraintdef(c.oid)) FROM relation AS r JOIN pg_constraint AS c ON c.conrelid = r.oid
    UNION ALL SELECT format('index %s: %s', r.name, pg_get_indexdef(i.indexrelid)) FROM relation AS r JOIN pg_index AS i ON i.indrelid = r.oid
    UNION ALL SELECT format('trigger %s: %s %s', r.name, pg_get_triggerdef(t.oid), t.tgenabled) FROM relation AS r JOIN pg_trigger AS t ON t.tgrelid = r.oid AND NOT t.tgisinternal
    UNION ALL SELECT format('view %s: %s', name, pg_get_viewdef(oid)) FROM relation WHERE relkind = 'v'
    UNION ALL SELECT format('dumped %s: %s', c.id::regclass, c.condition)
    FROM pg_extension AS x, unnest(x.extconfig, x.extcondition) AS c (id, condition) WHERE x.extname = 'pg_lanes'
    UNION ALL SELECT format('privilege %s %s: %s to %s by %s %s', a.name, a.place, e.privilege_type, e.grantee::regrole, e.grantor::regrole, e.is_grantable)
    FROM acl AS a, aclexplode(a.acl) AS e WHERE e.grantee = 0 OR pg_get_userbyid(e.grantee) NOT LIKE 'upgrade\_%'
    UNION ALL SELECT format('first privilege %s %s: %s to %s by %s', m.name, i.objsubid, e.privilege_type, e.grantee::regrole, e.grantor::regrole)
    FROM member AS m JOIN pg_init_privs AS i ON i.classoid = m.classid AND i.objoid = m.objid, aclexplode(i.initprivs) AS e
    UNION ALL SELECT format('extension in %s, version %s, relocatable %s', extnamespace::regnamespace, extversion, extrelocatable)
    FROM pg_extension WHERE extname = 'pg_lanes'
)
SELECT line FROM fact ORDER BY line COLLATE "C";
