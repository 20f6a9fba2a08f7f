-- Definitions, claims, batches and status, in one session. (Several sessions: tests/tests/extension.rs.)
\set log '00000000-0000-0000-0000-00000000000a'
\set other_log '00000000-0000-0000-0000-00000000000b'
CREATE VIEW lane AS
    SELECT lane, checkpoint, state, reason, owner, epoch, "position" AS at, lag, skipped_null_key AS skipped FROM lanes.status;

-- A projection is bound to a log.
SELECT * FROM failure($$ SELECT lanes.define(document('orders')) $$) \gx
INSERT INTO lanes.log (log_id, horizon) VALUES (:'log', 100);
SELECT * FROM failure($$ SELECT lanes.define(document('orders'), '00000000-0000-0000-0000-00000000000b') $$) \gx
SELECT name, lanes, slots, target_table, primary_key, bucketed, definition = document('orders') -> 'projections' -> 'orders' AS kept
FROM lanes.check_definition(document('orders'));
SELECT * FROM lanes.define(document('orders'));
SELECT name, version, log_id, lanes, slots, target_table FROM lanes.projection;
-- Again: nothing new. With two logs one must be named.
SELECT * FROM lanes.define(document('orders'));
INSERT INTO lanes.log (log_id) VALUES (:'other_log');
SELECT * FROM failure($$ SELECT lanes.define(document('orders')) $$) \gx
SELECT * FROM lanes.define(document('orders'), :'log');
-- Changed, of another log, or for a table that is taken: refused.
SELECT * FROM failure($$ SELECT lanes.define(document('orders', '{"lanes": 3, "fields": {"order_id": "TEXT", "placed": "INT"}}'), '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.define(document('orders'), '00000000-0000-0000-0000-00000000000b') $$) \gx
SELECT * FROM failure($$ SELECT lanes.define(document('sales'), '00000000-0000-0000-0000-00000000000a') $$) \gx
-- A document is taken whole or not at all: `aaa` comes before what is refused, and is not there.
SELECT * FROM failure($$ SELECT lanes.define(jsonb_build_object('projections',
    document('aaa', '{"target": {"table": "aaa", "primary_key": ["order_id"]}}') -> 'projections'
    || (document('orders', '{"lanes": 3}') -> 'projections')), '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT name FROM lanes.projection;
-- Where a table without a schema goes.
SET search_path = '';
SELECT * FROM public.failure($$ SELECT lanes.define(public.document('nowhere', '{"target": {"table": "nowhere", "primary_key": ["order_id"]}}'), '00000000-0000-0000-0000-00000000000a') $$) \gx
SET search_path = pg_temp;
SELECT * FROM public.failure($$ SELECT lanes.define(public.document('nowhere', '{"target": {"table": "nowhere", "primary_key": ["order_id"]}}'), '00000000-0000-0000-0000-00000000000a') $$) \gx
RESET search_path;
CREATE SCHEMA "My Shop";
SET search_path = "My Shop", public;
BEGIN;
SELECT lanes.define(document('nowhere', '{"target": {"table": "nowhere", "primary_key": ["order_id"]}}'), :'log');
SELECT lanes.define(document('elsewhere', '{"target": {"table": "shop.nowhere", "primary_key": ["order_id"]}}'), :'log');
SELECT name, target_table FROM lanes.projection;
ROLLBACK;
RESET search_path;
DROP SCHEMA "My Shop";

-- Nobody has started: visible.
SELECT * FROM lane;

-- Who may claim.
SELECT * FROM failure($$ SELECT lanes.claim('orders', 'w1') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim('orders', 'w1', '00000000-0000-0000-0000-00000000000b') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim('order', 'w1', '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim('orders~2', 'w1', '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim(NULL, 'w1', '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.claim('orders', '', '00000000-0000-0000-0000-00000000000a') $$) \gx

-- One lane a call; when none is left, no row. Asking again takes nothing twice: one release gives it back.
SELECT * FROM lanes.claim('orders', 'w1', :'log');
SELECT * FROM lanes.claim('orders~1', 'w1', :'log');
SELECT * FROM lanes.claim('orders', 'w1', :'log');
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';
SELECT owner, owner_process_id = pg_backend_pid() AS process, owner_application, owner_address,
    owner_started_at = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS started,
    claimed_at <= clock_timestamp() AS claimed, released_at
FROM lanes.checkpoint WHERE lane = 0;
SELECT lanes.release('orders', 1, 99) AS other_epoch, lanes.release('orders', 7, 1) AS no_such_lane;
SELECT lanes.release('orders', 1, 1) AS released;
SELECT lanes.release('orders', 1, 1) AS again;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';
SELECT * FROM lane;

-- What is rolled back did not happen: a claim gives its lock back, a release keeps it.
BEGIN;
SELECT * FROM lanes.claim('orders', 'w1', :'log');
SAVEPOINT before_release;
SELECT lanes.release('orders', 1, 2), lanes.release('orders', 0, 1);
ROLLBACK TO before_release;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';
ROLLBACK;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';
BEGIN;
SAVEPOINT outer_savepoint;
SAVEPOINT inner_savepoint;
SELECT * FROM lanes.claim('orders', 'w1', :'log');
RELEASE inner_savepoint;
ROLLBACK TO outer_savepoint;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';
COMMIT;
BEGIN;
SAVEPOINT kept;
SELECT lane FROM lanes.claim('orders', 'w1', :'log');
RELEASE kept;
COMMIT;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';
SELECT lanes.release('orders', 1, 2) AS released;
BEGIN;
SELECT lane FROM lanes.claim('orders', 'w1', :'log');
PREPARE TRANSACTION 'not_with_a_lane';
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory';

-- A batch: position and table from begin_batch, the checkpoint moved by commit_batch.
BEGIN;
SELECT * FROM lanes.begin_batch('orders', 0, 1, :'log');
SHOW idle_in_transaction_session_timeout;
SELECT lanes.commit_batch('orders', 0, 1, 40, 3);
COMMIT;
SHOW idle_in_transaction_session_timeout;
SELECT * FROM lane WHERE lane = 0;
-- A limit that is tighter already stays.
BEGIN;
SET LOCAL idle_in_transaction_session_timeout = '7s';
SELECT * FROM lanes.begin_batch('orders', 0, 1, :'log');
SHOW idle_in_transaction_session_timeout;
-- Quiet events move it too, and a report may be older than the checkpoint: the lag is not negative.
SELECT lanes.commit_batch('orders', 0, 1, 140);
COMMIT;
SELECT * FROM lane WHERE lane = 0;

-- The fences.
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 0, 2, '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 1, NULL, '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 2, 1, '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 0, 1, '00000000-0000-0000-0000-00000000000b') $$) \gx
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 0, 1, NULL) $$) \gx
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 0, 1, '00000000-0000-0000-0000-00000000000a') $$) \gx
ROLLBACK;
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 1, 150) $$) \gx
BEGIN;
SELECT lane, epoch FROM lanes.claim('orders', 'w1', :'log');
SELECT * FROM lanes.begin_batch('orders', 0, 1, :'log');
SELECT * FROM failure($$ SELECT lanes.begin_batch('orders', 1, 3, '00000000-0000-0000-0000-00000000000a') $$) \gx
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 1, 3, 150) $$) \gx
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 2, 150) $$) \gx
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 1, 139) $$) \gx
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 1, NULL) $$) \gx
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 1, 150, -1) $$) \gx
-- At its own checkpoint it may stand still, and a batch is committed once.
SELECT lanes.commit_batch('orders', 0, 1, 140);
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 1, 150) $$) \gx
-- Then the next lane's batch may begin, in the same transaction.
SELECT * FROM lanes.begin_batch('orders', 1, 3, :'log');
ROLLBACK;
-- A batch begun under a savepoint that was rolled back was not begun.
BEGIN;
SAVEPOINT s;
SELECT * FROM lanes.begin_batch('orders', 0, 1, :'log');
ROLLBACK TO s;
SELECT * FROM failure($$ SELECT lanes.commit_batch('orders', 0, 1, 150) $$) \gx
ROLLBACK;

-- A lane that cannot go on says why, until it does.
SELECT * FROM failure($$ SELECT lanes.stop_lane('orders', 0, 2, 'why') $$) \gx
SELECT * FROM failure($$ SELECT lanes.stop_lane('orders', 0, 1, '') $$) \gx
SELECT lanes.stop_lane('orders', 0, 1, 'the table is missing');
SELECT * FROM lane WHERE lane = 0;
-- So does one that goes on by itself, under another name; the last one who said something is right.
SELECT * FROM failure($$ SELECT lanes.hold_lane('orders', 0, 2, 'paused', 'why') $$) \gx
SELECT * FROM failure($$ SELECT lanes.hold_lane('orders', 0, 1, 'paused', '') $$) \gx
SELECT * FROM failure($$ SELECT lanes.hold_lane('orders', 0, 1, 'tired', 'why') $$) \gx
SELECT * FROM failure($$ SELECT lanes.hold_lane('orders', 0, 1, NULL, 'why') $$) \gx
SELECT lanes.hold_lane('orders', 0, 1, 'backing_off', 'deadlock detected');
SELECT lane, state, reason FROM lanes.status WHERE projection = 'orders' AND lane = 0;
SELECT lanes.hold_lane('orders', 0, 1, 'paused', 'others come first');
SELECT lane, state, reason FROM lanes.status WHERE projection = 'orders' AND lane = 0;
SELECT lanes.stop_lane('orders', 0, 1, 'the table is missing');
SELECT lane, state, reason FROM lanes.status WHERE projection = 'orders' AND lane = 0;
BEGIN;
SELECT * FROM lanes.begin_batch('orders', 0, 1, :'log');
SELECT lanes.commit_batch('orders', 0, 1, 141);
COMMIT;
SELECT * FROM lane WHERE lane = 0;
-- Without its lock a lane is nobody's, whatever the row says.
SELECT lanes.stop_lane('orders', 0, 1, 'the table is missing');
SELECT pg_advisory_unlock_all();
SELECT * FROM lane;
-- The lane longest without an owner comes first: lane 1 was released before lane 0 last moved. A claim begins afresh.
SELECT * FROM lanes.claim('orders', 'w2', :'log');
SELECT * FROM lanes.claim('orders', 'w2', :'log');
SELECT * FROM lane;
SELECT state, reason, log_id, log_report_age >= '0'::interval AS report_age, unowned_since, claimed_at IS NOT NULL AS claimed
FROM lanes.status;
SELECT lanes.release('orders', 0, 2), lanes.release('orders', 1, 3);
