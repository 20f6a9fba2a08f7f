-- The plain indexes of a table: their columns in order, and whether all of these descend.
-- $1 text: the table's name as SQL.
SELECT pg_catalog.array_agg(a.attname::text ORDER BY k.place),
       pg_catalog.bool_and(i.indoption[k.place - 1] & 1 = 1)
FROM pg_catalog.pg_index AS i
CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = pg_catalog.to_regclass($1) AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
