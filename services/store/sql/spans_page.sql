SELECT
    s.trace_id, s.span_id, nullIf(s.parent_id, '') AS parent_id, s.evaluation_id, nullIf(s.task_id, '') AS task_id,
    s.level, s.name, s.start_ns, s.duration_ns, s.agent, s.process, s.thread, s.stream, s.simulated, s.attributes
FROM spans AS s FINAL
WHERE s.evaluation_id = {evaluation_id:String}
    AND (s.task_id = '' OR (s.task_id, s.attempt) IN (
        SELECT task_id, attempt FROM mlms_attempts WHERE evaluation_id = {evaluation_id:String}))
    AND ({task_id:String} = '' OR s.task_id = {task_id:String})
    AND (s.task_id, s.start_ns, s.span_id) > ({after_task:String}, {after_start:Int64}, {after_span:String})
ORDER BY s.task_id, s.start_ns, s.span_id
LIMIT {limit:UInt32}
