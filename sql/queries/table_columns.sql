-- The columns of a table: name, type with its modifier, NOT NULL, place in the primary key or null.
-- $1 text: the table's name as SQL. No row if there is no such table.
SELECT a.attname::text,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.attnotnull,
       pg_catalog.array_position(i.indkey::smallint[], a.attnum)::smallint
FROM pg_catalog.pg_attribute AS a
LEFT JOIN pg_catalog.pg_index AS i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = pg_catalog.to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
