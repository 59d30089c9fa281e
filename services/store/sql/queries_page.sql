SELECT
    task_id, attempt, warmup, query_index, scheduled_ns, issued_ns, completed_ns, items,
    (completed_ns - scheduled_ns) / 1e6 AS latency_ms
FROM queries FINAL
WHERE evaluation_id = {evaluation_id:String}
    AND (task_id, attempt) IN (SELECT task_id, attempt FROM mlms_attempts WHERE evaluation_id = {evaluation_id:String})
    AND ({task_id:String} = '' OR task_id = {task_id:String})
    AND (task_id, toInt64(warmup), query_index) > ({after_task:String}, {after_warmup:Int64}, {after_index:Int64})
ORDER BY task_id, warmup, query_index
LIMIT {limit:UInt32}
