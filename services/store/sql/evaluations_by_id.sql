SELECT
    evaluation_id, status, model, model_version, dataset, dataset_version, user, created, ended, request, near_misses,
    failure
FROM mlms_evaluations
WHERE evaluation_id IN {ids:Array(String)}
ORDER BY evaluation_id DESC
