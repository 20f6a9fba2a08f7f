-- Pure functions: which lane and which row shard a key belongs to, and what a lane's checkpoint is called.
--
-- They live in the schema of CREATE EXTENSION, so that lane_of('order-42', 8) works as it stands.
-- IMMUTABLE for ever: indexes and partitions may be built on the answers (HASH-1).
-- A cast to text never stands between caller and C: the same id gives the same answer in every type (HASH-2).

CREATE FUNCTION @extschema@.shard(key text, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_text_wrapper';
COMMENT ON FUNCTION @extschema@.shard(text, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key uuid, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.shard(uuid, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key bigint, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_bigint_wrapper';
COMMENT ON FUNCTION @extschema@.shard(bigint, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key int, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_int_wrapper';
COMMENT ON FUNCTION @extschema@.shard(int, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key smallint, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_smallint_wrapper';
COMMENT ON FUNCTION @extschema@.shard(smallint, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.shard(key bytea, n int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'shard_bytea_wrapper';
COMMENT ON FUNCTION @extschema@.shard(bytea, int) IS
    'Row shard in 0..n-1 of a key: MurmurHash3 x86 32 of its canonical form, modulo n';

CREATE FUNCTION @extschema@.lane_of(key text, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_text_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(text, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key uuid, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_uuid_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(uuid, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key bigint, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bigint_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bigint, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key int, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_int_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(int, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key smallint, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_smallint_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(smallint, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key bytea, lanes int) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bytea_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bytea, int) IS
    'Lane in 0..lanes-1 of a key: FNV-1a 64 of its canonical form, modulo lanes';

CREATE FUNCTION @extschema@.lane_of(key text, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_text_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(text, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key uuid, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_uuid_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(uuid, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key bigint, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bigint_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bigint, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key int, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_int_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(int, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key smallint, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_smallint_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(smallint, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.lane_of(key bytea, lanes int, strategy text) RETURNS int
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'lane_of_bytea_strategy_wrapper';
COMMENT ON FUNCTION @extschema@.lane_of(bytea, int, text) IS
    'Lane in 0..lanes-1 of a key; strategy is modulo, or consistent (jump consistent hash, which moves as few keys as possible when the number of lanes changes)';

CREATE FUNCTION @extschema@.checkpoint_name(projection text, lane int) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE COST 1 LANGUAGE c AS 'MODULE_PATHNAME', 'checkpoint_name_wrapper';
COMMENT ON FUNCTION @extschema@.checkpoint_name(text, int) IS
    'Name of a lane''s checkpoint, for example orders#p3 (orders~2#p3 in version 2)';
