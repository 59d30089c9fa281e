-- As mlms_tasks, with no more columns than a list needs: the view has sixty.
SELECT
    t.evaluation_id AS evaluation_id,
    t.task_id AS task_id,
    argMax(t.status, t.rank) AS status,
    argMax(t.attempt, t.rank) AS attempt,
    max(t.framework) AS framework,
    max(t.framework_version) AS framework_version,
    max(t.device) AS device,
    max(t.architecture) AS architecture,
    argMaxIf(t.agent_id, t.rank, t.agent_id != '') AS agent_id,
    argMaxIf(t.system_id, t.rank, t.system_id != '') AS system_id,
    max(t.batch_size) AS batch_size,
    min(t.time_ns) AS created_ns,
    maxMapIf(map(t.attempt, t.time_ns), t.stage = 'started')[attempt] AS started_ns,
    argMaxIf(t.time_ns, t.rank, t.stage = 'ended') AS ended_ns,
    argMax(t.failure, t.rank) AS failure,
    argMax(t.figures, t.rank) AS figures
    , argMax(t.record, t.rank) AS record -- only with record
FROM tasks AS t
WHERE t.evaluation_id IN {ids:Array(String)}
GROUP BY t.evaluation_id, t.task_id
ORDER BY evaluation_id, framework, framework_version, task_id
-- One thread: there are a few hundred rows, and handing them to more costs more than they do.
SETTINGS max_threads = 1
