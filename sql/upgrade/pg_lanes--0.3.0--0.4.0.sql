\echo Use "ALTER EXTENSION pg_lanes UPDATE TO '0.4.0'" to load this file. \quit

-- 0.3.0 to 0.4.0.
