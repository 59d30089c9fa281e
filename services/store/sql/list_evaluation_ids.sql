-- Read backwards along the key and stopped at the limit; nothing here may make it sort.
SELECT evaluation_id
FROM evaluations
WHERE stage IN ('accepted', 'rejected')
    AND evaluation_id < {before:String} -- only with before
    AND model = {model:String} -- only with model
    AND dataset = {dataset:String} -- only with dataset
    AND has(frameworks, {framework:String}) -- only with framework
    AND has(devices, {device:String}) -- only with device
    AND user = {user:String} -- only with user
    AND time_ns >= {since_ns:Int64} -- only with since_ns
ORDER BY evaluation_id DESC
LIMIT {limit:UInt32}
SETTINGS max_threads = 1
