SELECT evaluation_id
FROM evaluations
WHERE true
    AND evaluation_id < {before:String} -- only with before
    AND evaluation_id >= {after:String} -- only with after
GROUP BY evaluation_id
HAVING max(rank) = transform(
        {status:String}, ['cancelled', 'failed', 'partial', 'completed', 'running', 'pending', 'rejected'],
        [13, 12, 11, 10, 2, 1, 0], 255)
    AND min(rank) < 2
    AND max(rank < 2 AND model = {model:String}) -- only with model
    AND max(rank < 2 AND dataset = {dataset:String}) -- only with dataset
    AND max(rank < 2 AND has(frameworks, {framework:String})) -- only with framework
    AND max(rank < 2 AND has(devices, {device:String})) -- only with device
    AND max(rank < 2 AND user = {user:String}) -- only with user
    AND max(rank < 2 AND time_ns >= {since_ns:Int64}) -- only with since_ns
ORDER BY evaluation_id DESC
LIMIT {limit:UInt32}
