SELECT evaluation_id
FROM evaluations
WHERE stage IN ('accepted', 'rejected')
    AND ({before:String} = '' OR evaluation_id < {before:String})
    AND ({model:String} = '' OR model = {model:String})
    AND ({dataset:String} = '' OR dataset = {dataset:String})
    AND ({framework:String} = '' OR has(frameworks, {framework:String}))
    AND ({device:String} = '' OR has(devices, {device:String}))
    AND ({user:String} = '' OR user = {user:String})
    AND time_ns >= {since_ns:Int64}
    -- Each set below is filled only for the statuses that need it.
    AND ({status:String} = ''
        OR ({status:String} = 'rejected' AND stage = 'rejected')
        OR ({status:String} IN ('completed', 'partial', 'failed', 'cancelled') AND evaluation_id IN (
            SELECT evaluation_id FROM evaluations WHERE {status:String} IN ('completed', 'partial', 'failed', 'cancelled')
                AND stage = 'ended' AND status = {status:String}))
        OR ({status:String} IN ('pending', 'running') AND stage = 'accepted'
            AND evaluation_id NOT IN (
                SELECT evaluation_id FROM evaluations WHERE {status:String} IN ('pending', 'running') AND stage = 'ended')
            AND (evaluation_id IN (
                SELECT evaluation_id FROM tasks WHERE {status:String} IN ('pending', 'running') AND stage != 'planned')
                ) = ({status:String} = 'running')))
ORDER BY evaluation_id DESC
LIMIT 1 BY evaluation_id
LIMIT {limit:UInt32}
