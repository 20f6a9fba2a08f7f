-- lanes.create_sum_view: one view column for each column of the source, added up over the other key columns.
CREATE SCHEMA shop;
CREATE DOMAIN shop.quantity AS int;
CREATE TABLE shop.sales (
    show text, bucket int, sold bigint, small smallint, whole int, given shop.quantity, price numeric, first_at bigint, last_at bigint,
    "Odd "" name" bigint, note text, PRIMARY KEY (show, bucket));
INSERT INTO shop.sales VALUES
    ('a', 0, 9223372036854775807, 32767, 2147483647, 1, 1.25, 5, 50, 1, 'x'),
    ('a', 1, 9223372036854775807, 32767, 2147483647, 2, 2.50, 4, 40, 2, NULL),
    ('b', 0, -7, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'y');
SELECT lanes.create_sum_view('sales_total', 'shop.sales', '{show}', '{sold,small,whole,given,price,"Odd \" name"}', '{first_at}', '{last_at}', '{note}');
-- 2 * (2^63 - 1) = 18446744073709551614; nulls are not added, and a count counts what is not null.
SELECT * FROM shop.sales_total ORDER BY show;
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'shop.sales_total'::regclass AND attnum > 0 ORDER BY attnum;
SELECT reloptions, obj_description(oid, 'pg_class') FROM pg_class WHERE oid = 'shop.sales_total'::regclass;
-- Another schema, a quoted name, no key at all: one row.
SELECT lanes.create_sum_view('public."All Sales"', 'shop.sales', '{}', '{sold}');
SELECT * FROM public."All Sales";
-- It belongs to the user: the extension can go, and it stays.
SELECT count(*) FROM pg_depend WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lanes')
    AND objid IN ('shop.sales_total'::regclass, 'public."All Sales"'::regclass);

SELECT * FROM failure($$ SELECT lanes.create_sum_view('sales_total', 'shop.sales', '{show}', '{sold}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', '{solt}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', '{sold,NULL}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', '{ctid}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', '{sold}', maxs => '{sold}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', '{show}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', '{note}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.nothing', '{show}', '{sold}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales_pkey', '{show}', '{sold}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('a.b.c', 'shop.sales', '{show}', '{sold}') $$) \gx
-- Names are names, not SQL.
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.sales', '{show}', ARRAY['sold); DROP TABLE shop.sales; --']) $$) \gx
DROP VIEW public."All Sales";
DROP SCHEMA shop CASCADE;
