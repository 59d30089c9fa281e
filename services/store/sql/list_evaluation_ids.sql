-- Read backwards along the key and stopped at the limit; nothing here may make it sort.
SELECT evaluation_id
FROM evaluations
WHERE stage IN ('accepted', 'rejected')
    AND evaluation_id < {before:String}
    AND ({model:String} = '' OR model = {model:String})
    AND ({dataset:String} = '' OR dataset = {dataset:String})
    AND ({framework:String} = '' OR has(frameworks, {framework:String}))
    AND ({device:String} = '' OR has(devices, {device:String}))
    AND ({user:String} = '' OR user = {user:String})
    AND time_ns >= {since_ns:Int64}
ORDER BY evaluation_id DESC
LIMIT {limit:UInt32}
