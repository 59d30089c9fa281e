SELECT
    evaluation_id, task_id, status, attempt, framework, framework_version, device, architecture, agent_id, system_id,
    batch_size, created, started, ended, failure, figures, '' AS record
FROM mlms_tasks
WHERE evaluation_id IN {ids:Array(String)}
ORDER BY evaluation_id, framework, framework_version, task_id
