-- The id of the log that an events table is, and the query that reads its events: position, type, key, time in
-- milliseconds and payload of those between two snapshots ($1 text, null: none; $2 text) whose positions are above $3 and
-- not above $4, at most $5. $1 text here: the table. No row if it is no log.
SELECT e.log_id,
       pg_catalog.format(
           'SELECT %1$I::bigint, COALESCE(%2$I::text, ''''), COALESCE(%3$I::text, ''''), COALESCE(%4$s, 0),'
           ' COALESCE(%5$I::text, ''{}'') FROM %6$s WHERE %7$s AND %1$I > $3::bigint AND %1$I <= $4::bigint'
           ' ORDER BY %1$I LIMIT $5::bigint',
           e.position_column, e.type_column, e.key_column,
           lanes.milliseconds(e),
           e.payload_column, e.events_table,
           pg_catalog.replace(pg_catalog.replace(lanes.between_ticks(e), '$1', '$1::text::pg_snapshot'),
               '$2', '$2::text::pg_snapshot'))
FROM lanes.events_table AS e
WHERE pg_catalog.to_regclass(e.events_table) = pg_catalog.to_regclass($1)
