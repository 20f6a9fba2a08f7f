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
-- Floors and ceilings bound the total, not a row: 5 - 7 = -2 shows as 0, 60 + 50 = 110 as 100; no row at all stays null.
CREATE TABLE shop.seats (show text, bucket int, sold bigint, free int, weight double precision, PRIMARY KEY (show, bucket));
INSERT INTO shop.seats VALUES ('a', 0, 5, 60, -1), ('a', 1, -7, 50, 0.5), ('b', 0, 3, 9, 2), ('b', 1, -1, -30, 2), ('c', 0, NULL, NULL, NULL);
SELECT lanes.create_sum_view('seats_total', 'shop.seats', '{show}', '{sold,free,weight}',
    floors => '{"sold": 0, "free": -20, "weight": 0}', ceilings => '{"free": 100, "weight": 3.5}', column_types => true);
SELECT * FROM shop.seats_total ORDER BY show;
SELECT attname, format_type(atttypid, atttypmod), col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = 'shop.seats_total'::regclass AND attnum > 0 ORDER BY attnum;
-- With the column's type a total must fit it.
UPDATE shop.sales SET whole = 2147483647 WHERE show = 'a';
SELECT lanes.create_sum_view('sales_typed', 'shop.sales', '{show}', '{whole}', column_types => true);
SELECT * FROM failure($$ SELECT * FROM shop.sales_typed WHERE show = 'a' $$) \gx
-- The last and the first by named columns: nulls are before every value, and a row without any of the order columns counts
-- for nothing. a: orders (2,7) (2,9) (1,99) and none; b: (null,4) (null,3); c: never.
CREATE TABLE shop.states (id text, bucket int, state varchar(5), tags text[], at int, at_position bigint, PRIMARY KEY (id, bucket));
INSERT INTO shop.states VALUES ('a', 0, 'a27', '{x}', 2, 7), ('a', 1, 'a29', '{y,z}', 2, 9), ('a', 2, 'a199', NULL, 1, 99), ('a', 3, 'none', '{n}', NULL, NULL),
    ('b', 0, 'b4', '{}', NULL, 4), ('b', 1, NULL, '{w}', NULL, 3), ('c', 0, 'none', '{n}', NULL, NULL), ('d', 0, 'null', '{}', NULL, 5), ('d', 1, 'one', '{1}', 1, 1);
SELECT lanes.create_sum_view('states_last', 'shop.states', '{id}', lasts => '{"state": ["at", "at_position"], "tags": ["at", "at_position"]}');
SELECT lanes.create_sum_view('states_first', 'shop.states', '{id}', firsts => '{"state": ["at", "at_position"], "tags": ["at", "at_position"]}');
SELECT * FROM shop.states_last ORDER BY id;
SELECT * FROM shop.states_first ORDER BY id;
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'shop.states_last'::regclass AND attnum > 0 ORDER BY attnum;

SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.seats', '{show}', '{sold}', floors => '{"free": 0}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.seats', '{show}', '{sold}', floors => '{"sold": "0"}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.seats', '{show}', '{sold}', floors => '{"sold": 2}', ceilings => '{"sold": 1}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.seats', '{show}', '{sold}', ceilings => '[]') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.states', '{id}', lasts => '{"state": "at"}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.states', '{id}', lasts => '{"state": []}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.states', '{id}', firsts => '{"state": ["when"]}') $$) \gx
SELECT * FROM failure($$ SELECT lanes.create_sum_view('v', 'shop.states', '{id}', firsts => '{"stat": ["at"]}') $$) \gx
DROP VIEW public."All Sales";
DROP SCHEMA shop CASCADE;
