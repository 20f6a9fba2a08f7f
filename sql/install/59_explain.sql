-- What a change of a map would do, before it is made: the shares of the lanes by their events, the slots that move, the pause.
-- The rules are in core/src/slot_map.rs; here the load is measured, by the events of a table, or by the slots where there is
-- none or it may not be read.

CREATE FUNCTION lanes.slot_shares(defined lanes.projection)
    RETURNS TABLE (slot int, share numeric, hot_key text, hot_key_share numeric)
    VOLATILE PARALLEL UNSAFE ROWS 1024 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sample_events CONSTANT int := 20000;
    log    lanes.events_table;
    sample record;
BEGIN
    SELECT e.* INTO log FROM lanes.events_table AS e
    WHERE e.log_id = slot_shares.defined.log_id AND EXISTS (
        -- By the catalogs: whoever may not use the schema may not even ask for its tables by name.
        SELECT FROM pg_catalog.pg_class AS r JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace
        WHERE pg_catalog.format('%I.%I', n.nspname, r.relname) = e.events_table
          AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(r.oid, 'SELECT'));
    IF NOT FOUND THEN
        -- What each lane has applied is known, and not which of its slots it was for.
        RETURN QUERY
        SELECT s.slot::int - 1, COALESCE(c.events / NULLIF(pg_catalog.sum(c.events) OVER (), 0), 0), NULL::text, NULL::numeric
        FROM (
            SELECT u.slot, u.lane, pg_catalog.count(*) OVER (PARTITION BY u.lane) AS of_lane
            FROM unnest(slot_shares.defined.slot_lanes) WITH ORDINALITY AS u (lane, slot)) AS s
        JOIN LATERAL (
            SELECT c.events::numeric / s.of_lane AS events FROM lanes.checkpoint AS c
            WHERE c.projection = slot_shares.defined.name AND c.version = slot_shares.defined.version AND c.lane = s.lane
        ) AS c ON true;
        RETURN;
    END IF;
    EXECUTE pg_catalog.format(
        'SELECT pg_catalog.array_agg(e.p) AS positions, pg_catalog.array_agg(e.t) AS types, pg_catalog.array_agg(e.k) AS keys,'
        ' pg_catalog.array_agg(e.ms) AS times, pg_catalog.array_agg(e.b) AS payloads'
        ' FROM (SELECT %1$I::bigint AS p, %2$I::text AS t, %3$I::text AS k, 0::bigint AS ms, %4$I::text AS b'
        ' FROM %5$s ORDER BY %1$I DESC LIMIT $1) AS e',
        log.position_column, log.type_column, log.key_column, log.payload_column, log.events_table)
    INTO sample USING sample_events;
    RETURN QUERY
    WITH event AS (
        SELECT e.slot, e.lane_key
        FROM lanes.event_slots(slot_shares.defined.definition, slot_shares.defined.slots, sample.types, sample.keys,
            sample.times, sample.positions, sample.payloads) AS e
        WHERE e.lane_key IS NOT NULL
    ), of_key AS (
        SELECT e.slot, e.lane_key, pg_catalog.count(*)::numeric / (SELECT pg_catalog.count(*) FROM event) AS share
        FROM event AS e GROUP BY e.slot, e.lane_key
    )
    SELECT DISTINCT ON (k.slot) k.slot, pg_catalog.sum(k.share) OVER (PARTITION BY k.slot), k.lane_key, k.share
    FROM of_key AS k ORDER BY k.slot, k.share DESC, k.lane_key;
END
$$;
COMMENT ON FUNCTION lanes.slot_shares(lanes.projection) IS
    'The share of events of each slot, and of its hottest key: of the latest 20000 events of an events table; with a log of ingestd, and without the right to read the table, of what the lanes have applied, each lane''s spread over its slots, without keys';
REVOKE ALL ON FUNCTION lanes.slot_shares(lanes.projection) FROM PUBLIC;

CREATE FUNCTION lanes.events_up_to(log_id uuid, tick bigint, "position" bigint) RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE sql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN events_up_to.tick = 0 THEN events_up_to."position" ELSE COALESCE((
        SELECT t.events FROM lanes.tick AS t
        WHERE t.log_id = events_up_to.log_id AND (t.tick, t.last_position) <= (events_up_to.tick, events_up_to."position")
        ORDER BY t.tick DESC LIMIT 1), 0::bigint) END;
$$;
COMMENT ON FUNCTION lanes.events_up_to(uuid, bigint, bigint) IS
    'How many events a log has up to a place; of an events table''s tick that the place is within, none';
REVOKE ALL ON FUNCTION lanes.events_up_to(uuid, bigint, bigint) FROM PUBLIC;

CREATE FUNCTION lanes.explain_map(projection text, slot_lanes int[])
    RETURNS TABLE (lane int, slots bigint, slots_then bigint, slots_moved_in bigint, share_percent numeric,
                   share_percent_then numeric, pause text, pause_ms numeric, note text)
    VOLATILE PARALLEL UNSAFE ROWS 8 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- From this share on, one key is called the load of its lane.
    hot_share CONSTANT numeric := 0.5;
    defined lanes.projection := lanes.find_projection(explain_map.projection);
    plan    record;
BEGIN
    SELECT p.* INTO STRICT plan FROM lanes.plan_change(defined.slot_lanes, explain_map.slot_lanes) AS p;
    RETURN QUERY
    WITH slot AS (
        SELECT soon.lane AS lane_then, defined.slot_lanes[(soon.slot - 1) % defined.slots + 1] AS lane_now,
            -- A slot that is refined shares its events with those it is split into.
            COALESCE(s.share, 0) * defined.slots / pg_catalog.cardinality(explain_map.slot_lanes) AS share,
            s.hot_key, s.hot_key_share, soon.slot - 1 AS slot
        FROM unnest(explain_map.slot_lanes) WITH ORDINALITY AS soon (lane, slot)
        LEFT JOIN lanes.slot_shares(defined) AS s ON s.slot = (soon.slot - 1) % defined.slots
    ), now AS (
        SELECT s.lane_now AS lane, pg_catalog.count(*) * defined.slots / pg_catalog.cardinality(explain_map.slot_lanes) AS slots,
            pg_catalog.sum(s.share) AS share
        FROM slot AS s GROUP BY s.lane_now
    ), soon AS (
        SELECT s.lane_then AS lane, pg_catalog.count(*) AS slots, pg_catalog.sum(s.share) AS share,
            pg_catalog.count(*) FILTER (WHERE s.lane_then <> s.lane_now) AS moved,
            (pg_catalog.array_agg(s.hot_key ORDER BY s.hot_key_share DESC NULLS LAST)
                FILTER (WHERE s.hot_key IS NOT NULL AND @extschema@.lane_of(s.hot_key, pg_catalog.cardinality(explain_map.slot_lanes)) = s.slot))[1] AS hot_key,
            pg_catalog.max(s.hot_key_share)
                FILTER (WHERE s.hot_key IS NOT NULL AND @extschema@.lane_of(s.hot_key, pg_catalog.cardinality(explain_map.slot_lanes)) = s.slot) AS hot_key_share
        FROM slot AS s GROUP BY s.lane_then
    ), stop AS (
        SELECT c.tick, c."position",
            pg_catalog.count(*) OVER (PARTITION BY c.tick, c."position") < pg_catalog.count(*) OVER () AS leaves_some_behind
        FROM lanes.checkpoint AS c
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (plan.involved)
        ORDER BY c.tick DESC, c."position" DESC LIMIT 1
    ), cost AS (
        SELECT pg_catalog.sum(c.work_ms) / NULLIF(pg_catalog.sum(c.events), 0) AS event_ms
        FROM lanes.checkpoint AS c WHERE c.projection = defined.name AND c.version = defined.version
    ), way AS (
        -- How long a lane needs to the stop, if it goes on at the pace of the projection's lanes so far.
        SELECT c.lane, n.share::double precision * cost.event_ms
            * (lanes.events_up_to(c.log_id, stop.tick, stop."position") - lanes.events_up_to(c.log_id, c.tick, c."position")) AS ms
        FROM lanes.checkpoint AS c
        JOIN now AS n ON n.lane = c.lane
        CROSS JOIN stop CROSS JOIN cost
        WHERE c.projection = defined.name AND c.version = defined.version AND c.lane = ANY (plan.involved)
    )
    SELECT COALESCE(n.lane, t.lane), COALESCE(n.slots, 0), COALESCE(t.slots, 0), COALESCE(t.moved, 0),
        pg_catalog.round(COALESCE(n.share, 0) * 100, 1), pg_catalog.round(COALESCE(t.share, 0) * 100, 1),
        CASE
            WHEN COALESCE(n.lane, t.lane) <> ALL (plan.involved) OR NOT stop.leaves_some_behind THEN 'none'
            WHEN (c.tick, c."position") = (stop.tick, stop."position") THEN 'until the lanes behind it stand here'
            ELSE pg_catalog.format('from %s on; the lane stands at %s', lanes.place(stop.tick, stop."position"), lanes.place(c.tick, c."position"))
        END,
        CASE
            WHEN COALESCE(n.lane, t.lane) <> ALL (plan.involved) OR NOT stop.leaves_some_behind THEN 0
            -- From its own arrival at the stop to the last one's.
            ELSE pg_catalog.round(((SELECT pg_catalog.max(w.ms) FROM way AS w)
                - COALESCE((SELECT w.ms FROM way AS w WHERE w.lane = COALESCE(n.lane, t.lane)), 0))::numeric, 1)
        END,
        CASE
            WHEN t.lane IS NULL THEN 'retires'
            WHEN t.hot_key_share > hot_share * t.share AND t.hot_key_share * 2 > 1.0 / defined.lanes
                THEN pg_catalog.format('key %L alone is %s %% of all events: no number of lanes spreads it', t.hot_key,
                    pg_catalog.round(t.hot_key_share * 100, 1))
            WHEN n.lane IS NULL THEN 'new'
        END
    FROM now AS n
    FULL JOIN soon AS t ON t.lane = n.lane
    LEFT JOIN stop ON true
    LEFT JOIN lanes.checkpoint AS c
        ON c.projection = defined.name AND c.version = defined.version AND c.lane = COALESCE(n.lane, t.lane)
    ORDER BY 1;
END
$$;
COMMENT ON FUNCTION lanes.explain_map(text, int[]) IS
    'What a change of the map would do, by lane: slots and share of events now and then, who waits for whom and for about how long (pause_ms, null if no event was applied yet), and which key alone is the load. For maps that lanes.plan_split, plan_merge, plan_move and plan_isolate make';
REVOKE ALL ON FUNCTION lanes.explain_map(text, int[]) FROM PUBLIC;

CREATE FUNCTION lanes.explain_resize(projection text, lanes int, modulo boolean DEFAULT false)
    RETURNS TABLE (lane int, slots bigint, slots_then bigint, slots_moved_in bigint, share_percent numeric,
                   share_percent_then numeric, pause text, pause_ms numeric, note text)
    VOLATILE PARALLEL UNSAFE ROWS 8 LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    defined lanes.projection := lanes.find_projection(explain_resize.projection);
BEGIN
    PERFORM lanes.require_number('lanes', explain_resize.lanes);
    RETURN QUERY SELECT e.* FROM lanes.explain_map(explain_resize.projection,
        lanes.plan_resize(defined.slot_lanes, explain_resize.lanes, COALESCE(explain_resize.modulo, false))) AS e;
END
$$;
COMMENT ON FUNCTION lanes.explain_resize(text, int, boolean) IS 'What lanes.resize would do, by lane. Changes nothing';
REVOKE ALL ON FUNCTION lanes.explain_resize(text, int, boolean) FROM PUBLIC;
