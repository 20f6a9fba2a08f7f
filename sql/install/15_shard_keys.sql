-- Write sharding: one hot key of any store written as n keys (STATUS#pending#0 to #9), and read as all of them.
--
-- In the schema of CREATE EXTENSION, like the hashing they rest on. shard_key is IMMUTABLE for ever (HASH-1).

CREATE FUNCTION @extschema@.shard_key(key text, id text, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_text_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, text, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id uuid, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, uuid, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id bigint, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_bigint_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, bigint, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id int, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_int_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, int, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id smallint, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_smallint_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, smallint, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.shard_key(key text, id bytea, n int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_key_bytea_wrapper';
COMMENT ON FUNCTION @extschema@.shard_key(text, bytea, int) IS
    'The key under which an item is written: key, #, and shard(id, n), as in STATUS#pending#3; the same item always gives the same';

CREATE FUNCTION @extschema@.random_shard_key(key text, n int) RETURNS text
    VOLATILE STRICT PARALLEL RESTRICTED COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'random_shard_key_wrapper';
COMMENT ON FUNCTION @extschema@.random_shard_key(text, int) IS
    'One of the n sharded keys of key, at random: for items that are never looked up by their id';

CREATE FUNCTION @extschema@.shard_keys(key text, n int) RETURNS text[]
    IMMUTABLE STRICT PARALLEL SAFE COST 10 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_keys_wrapper';
COMMENT ON FUNCTION @extschema@.shard_keys(text, int) IS
    'All n sharded keys of key, for the read that fans out: WHERE k = ANY (shard_keys(''STATUS#pending'', 10))';

CREATE FUNCTION @extschema@.shard_of_key(sharded_key text) RETURNS TABLE (key text, shard int)
    IMMUTABLE STRICT PARALLEL SAFE COST 1 ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_of_key_wrapper';
COMMENT ON FUNCTION @extschema@.shard_of_key(text) IS
    'Takes a sharded key apart: what stands before its last #, and the shard after it';

CREATE FUNCTION @extschema@.suggest_shards(writes_per_second bigint, per_shard_limit bigint DEFAULT 1000,
                                           headroom numeric DEFAULT 2.5)
    RETURNS TABLE (shards int, power_of_two int, counter_shards_from int, counter_shards_to int, reads_per_query int)
    IMMUTABLE STRICT PARALLEL SAFE COST 10 ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'suggest_shards_wrapper';
COMMENT ON FUNCTION @extschema@.suggest_shards(bigint, bigint, numeric) IS
    'How many shards a rate needs: writes_per_second / per_shard_limit * headroom, rounded up; the next power of two; how many row shards a counter in Postgres needs (null: one row is enough); and how many keys each read then asks for';
