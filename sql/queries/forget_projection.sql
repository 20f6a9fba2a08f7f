-- Lets go of a projection: its definition and checkpoints go, its table stays. $1 text: its name; $2 uuid: the log's id.
-- The projection and then its lanes are locked first, as by changes of the map: a batch that runs is waited for.
WITH projection AS MATERIALIZED (
    SELECT p.name, p.version
    FROM lanes.projection AS p
    WHERE p.name = $1 AND p.log_id = $2
    ORDER BY p.version
    FOR NO KEY UPDATE
), lane AS MATERIALIZED (
    SELECT c.lane
    FROM lanes.checkpoint AS c
    JOIN projection AS p ON c.projection = p.name AND c.version = p.version
    ORDER BY c.version, c.lane
    FOR UPDATE OF c
)
DELETE FROM lanes.projection AS p
USING (SELECT pg_catalog.count(*) AS lanes FROM lane) AS locked
WHERE p.name = $1 AND p.log_id = $2 AND locked.lanes >= 0
