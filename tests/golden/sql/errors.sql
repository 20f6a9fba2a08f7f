-- What a client sees of a wrong argument.
\pset format unaligned
\pset fieldsep '\n  '
\pset tuples_only on
SELECT * FROM failure($$ SELECT lane_of('x', 0) $$);
SELECT * FROM failure($$ SELECT lane_of(1, -3, 'consistent') $$);
SELECT * FROM failure($$ SELECT shard('x', 0) $$);
SELECT * FROM failure($$ SELECT shard(gen_random_uuid(), -2147483648) $$);
SELECT * FROM failure($$ SELECT lane_of('x', 8, 'ring') $$);
SELECT * FROM failure($$ SELECT checkpoint_name('Größe', 0) $$);
SELECT * FROM failure($$ SELECT checkpoint_name('orders', -1) $$);
SELECT * FROM failure($$ SELECT lanes.lock_key('orders~0', 1) $$);
-- Documents: the place, and the way out.
SELECT * FROM failure($$ SELECT lanes.check_definition('[]') $$);
SELECT * FROM failure($$ SELECT lanes.check_definition('{"projections": {"a": {"priority": 1e400}}}') $$);
SELECT * FROM failure($$ SELECT lanes.check_definition(document('orders', '{"lanes": 0}')) $$);
SELECT * FROM failure($$ SELECT lanes.check_definition(document('orders', '{"lames": 2}')) $$);
SELECT * FROM failure($$ SELECT lanes.check_definition(document('Größe')) $$);
