-- The evaluation this many rows before the newest.
SELECT evaluation_id
FROM evaluations
WHERE true
    AND evaluation_id < {before:String} -- only with before
ORDER BY evaluation_id DESC
LIMIT 1 OFFSET {position:UInt32}
