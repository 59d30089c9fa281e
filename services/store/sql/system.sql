SELECT record
FROM systems FINAL
WHERE system_id = {system_id:String}
ORDER BY time_ns DESC
LIMIT 1
