-- The advisory lock of a lane, and names of projections.

CREATE FUNCTION lanes.lock_key(projection text, lane int) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lock_key_wrapper';
COMMENT ON FUNCTION lanes.lock_key(text, int) IS
    'Key of a lane''s advisory lock: FNV-1a 64 of the checkpoint''s name';

CREATE FUNCTION lanes.take_lane_lock(projection text, lane int) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE COST 10 LANGUAGE c AS 'MODULE_PATHNAME', 'take_lane_lock_wrapper';
COMMENT ON FUNCTION lanes.take_lane_lock(text, int) IS
    'Takes a lane''s advisory lock for this session, and gives it back if the transaction is rolled back; false if any session holds it, this one included. A part of claim';
REVOKE ALL ON FUNCTION lanes.take_lane_lock(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.give_up_lane_lock(projection text, lane int) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE COST 10 LANGUAGE c AS 'MODULE_PATHNAME', 'give_up_lane_lock_wrapper';
COMMENT ON FUNCTION lanes.give_up_lane_lock(text, int) IS
    'Gives up a lane''s advisory lock when the transaction commits; false if this session does not hold it. A part of release';
REVOKE ALL ON FUNCTION lanes.give_up_lane_lock(text, int) FROM PUBLIC;

CREATE FUNCTION lanes.find_projection(projection text) RETURNS lanes.projection
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection;
BEGIN
    IF find_projection.projection IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'projection must not be null';
    END IF;
    -- Refuses a malformed name (42602), so the parts below are a name and at most a number.
    PERFORM lanes.lock_key(find_projection.projection, 0);
    -- `orders` means the version in use: the first, as long as nothing makes another.
    SELECT p.* INTO defined
    FROM lanes.projection AS p
    WHERE p.name = pg_catalog.split_part(find_projection.projection, '~', 1)
      AND p.version = COALESCE(NULLIF(pg_catalog.split_part(find_projection.projection, '~', 2), ''), '1')::bigint;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('projection "%s" does not exist', find_projection.projection),
            HINT = 'Define it with lanes.define or ingestd apply; lanes.status lists the ones there are.';
    END IF;
    RETURN defined;
END
$$;
COMMENT ON FUNCTION lanes.find_projection(text) IS
    'The row of a projection, named as orders (the version in use) or orders~2; an error if there is none';
