-- As mlms_evaluations, without the manifests.
SELECT
    e.evaluation_id AS evaluation_id,
    argMax(e.status, e.rank) AS status,
    argMinIf(e.model, e.stage, e.rank < 2) AS model,
    argMinIf(e.model_version, e.stage, e.rank < 2) AS model_version,
    argMinIf(e.dataset, e.stage, e.rank < 2) AS dataset,
    argMinIf(e.dataset_version, e.stage, e.rank < 2) AS dataset_version,
    argMinIf(e.user, e.stage, e.rank < 2) AS user,
    argMinIf(e.time_ns, e.stage, e.rank < 2) AS created_ns,
    maxIf(e.time_ns, e.stage IN ('ended', 'rejected')) AS ended_ns,
    argMinIf(e.request, e.stage, e.rank < 2) AS request,
    argMinIf(e.near_misses, e.stage, e.rank < 2) AS near_misses,
    argMinIf(e.failure, e.stage, e.rank < 2) AS failure
FROM evaluations AS e
WHERE e.evaluation_id IN {ids:Array(String)}
GROUP BY e.evaluation_id
HAVING min(e.rank) < 2
ORDER BY evaluation_id DESC
-- One thread: there are a few hundred rows, and handing them to more costs more than they do.
SETTINGS max_threads = 1
