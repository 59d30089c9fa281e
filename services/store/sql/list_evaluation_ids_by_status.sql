SELECT evaluation_id
FROM evaluations
WHERE evaluation_id < {before:String} AND evaluation_id >= {after:String}
GROUP BY evaluation_id
HAVING max(rank) = transform(
        {status:String}, ['cancelled', 'failed', 'partial', 'completed', 'running', 'pending', 'rejected'],
        [13, 12, 11, 10, 2, 1, 0], 255)
    AND max(stage IN ('accepted', 'rejected')
        AND ({model:String} = '' OR model = {model:String})
        AND ({dataset:String} = '' OR dataset = {dataset:String})
        AND ({framework:String} = '' OR has(frameworks, {framework:String}))
        AND ({device:String} = '' OR has(devices, {device:String}))
        AND ({user:String} = '' OR user = {user:String})
        AND time_ns >= {since_ns:Int64})
ORDER BY evaluation_id DESC
LIMIT {limit:UInt32}
