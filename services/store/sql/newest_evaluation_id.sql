-- The evaluation this many rows before the newest.
SELECT evaluation_id
FROM evaluations
WHERE evaluation_id < {before:String}
ORDER BY evaluation_id DESC
LIMIT 1 OFFSET {position:UInt32}
