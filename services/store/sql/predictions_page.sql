SELECT
    task_id, attempt, input_index, input_id, label, classes, scores, names, correct_top1, correct_top5, error,
    output_digest
FROM predictions FINAL
WHERE evaluation_id = {evaluation_id:String}
    AND (task_id, attempt) IN (SELECT task_id, attempt FROM mlms_attempts WHERE evaluation_id = {evaluation_id:String})
    AND ({task_id:String} = '' OR task_id = {task_id:String})
    AND (NOT {only_wrong:Bool} OR NOT correct_top1)
    AND (task_id, input_index) > ({after_task:String}, {after_index:Int64})
ORDER BY task_id, input_index
LIMIT {limit:UInt32}
