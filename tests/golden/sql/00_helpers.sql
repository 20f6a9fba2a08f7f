-- What the other files use. They run in the order of their names, each in a session of its own.

-- Runs a statement that is expected to fail, and shows what a client would see of the error.
CREATE FUNCTION failure(statement text)
    RETURNS TABLE (code text, message text, detail text, hint text)
    LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE statement;
    message := 'no error';
    RETURN NEXT;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN NEXT;
END
$$;

-- A document that defines one projection with two lanes, changed as asked.
CREATE FUNCTION document(name text, change jsonb DEFAULT '{}') RETURNS jsonb LANGUAGE sql
AS $$
    SELECT jsonb_build_object('projections', jsonb_build_object(name, '{
        "source_events": ["ORDER_PLACED"],
        "lanes": 2,
        "lane_key": "event.order_id",
        "target": {"table": "orders", "primary_key": ["order_id"]},
        "fields": {"order_id": "TEXT", "placed": "BIGINT"},
        "derive": {"order_id": "event.order_id"},
        "aggregates": {"ORDER_PLACED": {"placed": {"op": "count"}}}
    }'::jsonb || change))
$$;
