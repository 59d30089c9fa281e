-- The stable surface for people who write SQL. Every view shows each thing once: rows told twice are one, and of a
-- task that was attempted several times the final attempt is shown.

CREATE OR REPLACE VIEW mlms_tasks
(
    evaluation_id String COMMENT 'The evaluation it belongs to',
    task_id String COMMENT 'One predictor stack of that evaluation',
    attempt UInt32 COMMENT 'The final attempt: the one that completed, else the last; 0: none yet',
    status LowCardinality(String) COMMENT 'assigned, running, completed, failed or cancelled',
    model LowCardinality(String) COMMENT 'Name of the model',
    model_version LowCardinality(String) COMMENT 'Version that ran',
    dataset LowCardinality(String) COMMENT 'Name of the data set',
    dataset_version LowCardinality(String) COMMENT 'Version that ran',
    user LowCardinality(String) COMMENT 'Who asked',
    scenario LowCardinality(String) COMMENT 'single_stream, offline or accuracy',
    framework LowCardinality(String) COMMENT 'Framework of the stack',
    framework_version LowCardinality(String) COMMENT 'As the framework itself reports it',
    device LowCardinality(String) COMMENT 'cpu or gpu',
    architecture LowCardinality(String) COMMENT 'amd64, arm64, ppc64le',
    agent_id String COMMENT 'Agent of the final attempt',
    system_id String COMMENT 'Machine of the final attempt: see mlms_systems',
    batch_size UInt32 COMMENT 'Items per query',
    created DateTime64(6, 'UTC') COMMENT 'When it was planned',
    started Nullable(DateTime64(6, 'UTC')) COMMENT 'When the final attempt began',
    ended Nullable(DateTime64(6, 'UTC')) COMMENT 'When the final attempt ended',
    accuracy_top1 Nullable(Float64) COMMENT 'Fraction of the items asked for whose best class is right',
    accuracy_top1_low Nullable(Float64) COMMENT 'Lower end of its interval',
    accuracy_top1_high Nullable(Float64) COMMENT 'Upper end of its interval',
    accuracy_top5 Nullable(Float64) COMMENT 'Fraction whose label is among the best five',
    accuracy_top5_low Nullable(Float64) COMMENT 'Lower end of its interval',
    accuracy_top5_high Nullable(Float64) COMMENT 'Upper end of its interval',
    items_asked Nullable(UInt64) COMMENT 'Items the accuracies are divided by',
    items_unreadable Nullable(UInt64) COMMENT 'Of these, items that could not be read; they count as wrong',
    query_count Nullable(UInt64) COMMENT 'Measured queries, warm-up left out',
    mean_ms Nullable(Float64) COMMENT 'Mean latency of a query',
    trimmed_mean_ms Nullable(Float64) COMMENT 'Mean with the highest and the lowest fifth dropped',
    min_ms Nullable(Float64) COMMENT 'Lowest latency',
    max_ms Nullable(Float64) COMMENT 'Highest latency',
    median_ms Nullable(Float64) COMMENT 'Sample median',
    median_low_ms Nullable(Float64) COMMENT 'Lower end of its interval',
    median_high_ms Nullable(Float64) COMMENT 'Upper end of its interval',
    p50_ms Nullable(Float64) COMMENT 'Early-stopping estimate at confidence 0.99, as the following; NULL below the sample floor',
    p90_ms Nullable(Float64) COMMENT 'NULL below 64 queries',
    p95_ms Nullable(Float64) COMMENT 'NULL below 130 queries',
    p97_ms Nullable(Float64) COMMENT 'NULL below 219 queries',
    p99_ms Nullable(Float64) COMMENT 'NULL below 662 queries',
    p99_9_ms Nullable(Float64) COMMENT 'NULL below 6636 queries',
    throughput Nullable(Float64) COMMENT 'Items a second over the measured window',
    throughput_low Nullable(Float64) COMMENT 'Lower end of its interval',
    throughput_high Nullable(Float64) COMMENT 'Upper end of its interval',
    process_start_ms Nullable(Float64) COMMENT 'Worker process asked for until ready',
    open_ms Nullable(Float64) COMMENT 'Opening the model in a fresh process',
    first_predict_ms Nullable(Float64) COMMENT 'First prediction in a fresh process',
    cold_start_ms Nullable(Float64) COMMENT 'Opening and first prediction in a fresh process, together',
    cold_start_measured_here Nullable(Bool) COMMENT 'False: measured when the warm worker was opened for an earlier task',
    preparation_items_per_s Nullable(Float64) COMMENT 'Throughput of input preparation, before the measurement',
    valid Nullable(Bool) COMMENT 'Whether the figures may be quoted',
    load_generator LowCardinality(String) COMMENT 'Name and version',
    evaluation_key String COMMENT 'Tasks with the same key measured the same thing on the same machine',
    pipeline_digest String COMMENT 'Tasks with different digests did not run the same pre- and post-processing',
    environment_digest String COMMENT 'Digest of the versions of all installed libraries',
    figures String COMMENT 'Accuracy, latency, throughput, cold start and validity as JSON; empty: none',
    record String COMMENT 'TaskRecord as JSON: everything; empty: none',
    failure String COMMENT 'Failure as JSON; empty: none'
)
AS SELECT
    t.evaluation_id AS evaluation_id,
    t.task_id AS task_id,
    argMax(t.attempt, t.rank) AS attempt,
    argMax(t.status, t.rank) AS status,
    max(t.model) AS model,
    max(t.model_version) AS model_version,
    max(t.dataset) AS dataset,
    max(t.dataset_version) AS dataset_version,
    max(t.user) AS user,
    max(t.scenario) AS scenario,
    max(t.framework) AS framework,
    max(t.framework_version) AS framework_version,
    max(t.device) AS device,
    max(t.architecture) AS architecture,
    argMaxIf(t.agent_id, t.rank, t.agent_id != '') AS agent_id,
    argMaxIf(t.system_id, t.rank, t.system_id != '') AS system_id,
    max(t.batch_size) AS batch_size,
    toDateTime64(fromUnixTimestamp64Nano(min(t.time_ns), 'UTC'), 6, 'UTC') AS created,
    toDateTime64(fromUnixTimestamp64Nano(nullIf(maxMapIf(map(t.attempt, t.time_ns), t.stage = 'started')[attempt], 0), 'UTC'), 6, 'UTC')
        AS started,
    toDateTime64(fromUnixTimestamp64Nano(nullIf(argMaxIf(t.time_ns, t.rank, t.stage = 'ended'), 0), 'UTC'), 6, 'UTC') AS ended,
    argMax(tuple(t.accuracy_top1), t.rank).1 AS accuracy_top1,
    argMax(tuple(t.accuracy_top1_low), t.rank).1 AS accuracy_top1_low,
    argMax(tuple(t.accuracy_top1_high), t.rank).1 AS accuracy_top1_high,
    argMax(tuple(t.accuracy_top5), t.rank).1 AS accuracy_top5,
    argMax(tuple(t.accuracy_top5_low), t.rank).1 AS accuracy_top5_low,
    argMax(tuple(t.accuracy_top5_high), t.rank).1 AS accuracy_top5_high,
    argMax(tuple(t.items_asked), t.rank).1 AS items_asked,
    argMax(tuple(t.items_unreadable), t.rank).1 AS items_unreadable,
    argMax(tuple(t.query_count), t.rank).1 AS query_count,
    argMax(tuple(t.mean_ms), t.rank).1 AS mean_ms,
    argMax(tuple(t.trimmed_mean_ms), t.rank).1 AS trimmed_mean_ms,
    argMax(tuple(t.min_ms), t.rank).1 AS min_ms,
    argMax(tuple(t.max_ms), t.rank).1 AS max_ms,
    argMax(tuple(t.median_ms), t.rank).1 AS median_ms,
    argMax(tuple(t.median_low_ms), t.rank).1 AS median_low_ms,
    argMax(tuple(t.median_high_ms), t.rank).1 AS median_high_ms,
    argMax(tuple(t.p50_ms), t.rank).1 AS p50_ms,
    argMax(tuple(t.p90_ms), t.rank).1 AS p90_ms,
    argMax(tuple(t.p95_ms), t.rank).1 AS p95_ms,
    argMax(tuple(t.p97_ms), t.rank).1 AS p97_ms,
    argMax(tuple(t.p99_ms), t.rank).1 AS p99_ms,
    argMax(tuple(t.p99_9_ms), t.rank).1 AS p99_9_ms,
    argMax(tuple(t.throughput), t.rank).1 AS throughput,
    argMax(tuple(t.throughput_low), t.rank).1 AS throughput_low,
    argMax(tuple(t.throughput_high), t.rank).1 AS throughput_high,
    argMax(tuple(t.process_start_ms), t.rank).1 AS process_start_ms,
    argMax(tuple(t.open_ms), t.rank).1 AS open_ms,
    argMax(tuple(t.first_predict_ms), t.rank).1 AS first_predict_ms,
    open_ms + first_predict_ms AS cold_start_ms,
    argMax(tuple(t.cold_start_measured_here), t.rank).1 AS cold_start_measured_here,
    argMax(tuple(t.preparation_items_per_s), t.rank).1 AS preparation_items_per_s,
    argMax(tuple(t.valid), t.rank).1 AS valid,
    argMax(t.load_generator, t.rank) AS load_generator,
    argMax(t.evaluation_key, t.rank) AS evaluation_key,
    argMax(t.pipeline_digest, t.rank) AS pipeline_digest,
    argMax(t.environment_digest, t.rank) AS environment_digest,
    argMax(t.figures, t.rank) AS figures,
    argMax(t.record, t.rank) AS record,
    argMax(t.failure, t.rank) AS failure
FROM tasks AS t
GROUP BY t.evaluation_id, t.task_id;

CREATE OR REPLACE VIEW mlms_attempts
(
    evaluation_id String COMMENT 'The evaluation',
    task_id String COMMENT 'The task',
    attempt UInt32 COMMENT 'Its final attempt: what the other views show'
)
AS SELECT t.evaluation_id AS evaluation_id, t.task_id AS task_id, argMax(t.attempt, t.rank) AS attempt
FROM tasks AS t
GROUP BY t.evaluation_id, t.task_id;

CREATE OR REPLACE VIEW mlms_evaluations
(
    evaluation_id String COMMENT 'Sorts by time of creation',
    status LowCardinality(String) COMMENT 'pending, running, completed, partial, failed, cancelled or rejected',
    model LowCardinality(String) COMMENT 'Name of the model',
    model_version LowCardinality(String) COMMENT 'Version that ran; of a rejected one the range asked for',
    dataset LowCardinality(String) COMMENT 'Name of the data set',
    dataset_version LowCardinality(String) COMMENT 'Version that ran; of a rejected one the range asked for',
    user LowCardinality(String) COMMENT 'Who asked',
    scenario LowCardinality(String) COMMENT 'single_stream, offline or accuracy',
    frameworks Array(LowCardinality(String)) COMMENT 'Of its tasks',
    devices Array(LowCardinality(String)) COMMENT 'Of its tasks',
    planned UInt32 COMMENT 'Tasks planned',
    completed UInt32 COMMENT 'Tasks that completed, once all have ended',
    failed UInt32 COMMENT 'Tasks that failed, once all have ended',
    cancelled UInt32 COMMENT 'Tasks that were cancelled, once all have ended',
    created DateTime64(6, 'UTC') COMMENT 'When it was accepted or rejected',
    ended Nullable(DateTime64(6, 'UTC')) COMMENT 'When its last task ended',
    request String COMMENT 'EvaluationRequested as JSON',
    model_manifest String COMMENT 'The model manifest that ran, as JSON',
    dataset_manifest String COMMENT 'The data set manifest that ran, as JSON',
    near_misses String COMMENT 'JSON list: predictors that were not chosen and why',
    failure String COMMENT 'Why it was rejected, as JSON; empty: it was not'
)
AS SELECT
    e.evaluation_id AS evaluation_id,
    argMax(e.status, e.rank) AS status,
    argMinIf(e.model, e.stage, e.rank < 2) AS model,
    argMinIf(e.model_version, e.stage, e.rank < 2) AS model_version,
    argMinIf(e.dataset, e.stage, e.rank < 2) AS dataset,
    argMinIf(e.dataset_version, e.stage, e.rank < 2) AS dataset_version,
    argMinIf(e.user, e.stage, e.rank < 2) AS user,
    argMinIf(e.scenario, e.stage, e.rank < 2) AS scenario,
    argMinIf(e.frameworks, e.stage, e.rank < 2) AS frameworks,
    argMinIf(e.devices, e.stage, e.rank < 2) AS devices,
    argMinIf(e.planned, e.stage, e.rank < 2) AS planned,
    argMaxIf(e.completed, e.rank, e.stage = 'ended') AS completed,
    argMaxIf(e.failed, e.rank, e.stage = 'ended') AS failed,
    argMaxIf(e.cancelled, e.rank, e.stage = 'ended') AS cancelled,
    toDateTime64(fromUnixTimestamp64Nano(argMinIf(e.time_ns, e.stage, e.rank < 2), 'UTC'), 6, 'UTC') AS created,
    toDateTime64(fromUnixTimestamp64Nano(nullIf(maxIf(e.time_ns, e.stage IN ('ended', 'rejected')), 0), 'UTC'), 6, 'UTC')
        AS ended,
    argMinIf(e.request, e.stage, e.rank < 2) AS request,
    argMinIf(e.model_manifest, e.stage, e.rank < 2) AS model_manifest,
    argMinIf(e.dataset_manifest, e.stage, e.rank < 2) AS dataset_manifest,
    argMinIf(e.near_misses, e.stage, e.rank < 2) AS near_misses,
    argMinIf(e.failure, e.stage, e.rank < 2) AS failure
FROM evaluations AS e
GROUP BY e.evaluation_id
HAVING min(e.rank) < 2;

CREATE OR REPLACE VIEW mlms_predictions
(
    evaluation_id String COMMENT 'The evaluation',
    task_id String COMMENT 'The task',
    attempt UInt32 COMMENT 'The final attempt',
    input_index Int64 COMMENT 'Position in the data set',
    input_id String COMMENT 'What the data set calls the item',
    label String COMMENT 'Truth, as the data set states it',
    classes Array(Int64) COMMENT 'Best first, at most five, in the data set''s numbering',
    scores Array(Float64) COMMENT 'Of these classes',
    names Array(String) COMMENT 'Of these classes',
    correct_top1 Bool COMMENT 'The best class is the label',
    correct_top5 Bool COMMENT 'The label is among the best five',
    error String COMMENT 'Why the item could not be read; empty: it could',
    output_digest String COMMENT 'sha256 of the raw output'
)
AS SELECT
    p.evaluation_id AS evaluation_id, p.task_id AS task_id, p.attempt AS attempt, p.input_index AS input_index,
    p.input_id AS input_id, p.label AS label, p.classes AS classes, p.scores AS scores, p.names AS names,
    p.correct_top1 AS correct_top1, p.correct_top5 AS correct_top5, p.error AS error, p.output_digest AS output_digest
FROM predictions AS p FINAL
INNER JOIN mlms_attempts AS a
    ON p.evaluation_id = a.evaluation_id AND p.task_id = a.task_id AND p.attempt = a.attempt;

CREATE OR REPLACE VIEW mlms_queries
(
    evaluation_id String COMMENT 'The evaluation',
    task_id String COMMENT 'The task',
    attempt UInt32 COMMENT 'The final attempt',
    warmup Bool COMMENT 'Sent before the measurement; not in any figure',
    query_index Int64 COMMENT 'Order of issue',
    scheduled_ns Int64 COMMENT 'When it was due, nanoseconds since the measurement''s first query was issued',
    issued_ns Int64 COMMENT 'When it was sent',
    completed_ns Int64 COMMENT 'When its answer was there',
    items UInt32 COMMENT 'Items in it',
    latency_ms Float64 COMMENT 'From when it was due to its answer',
    lateness_ms Float64 COMMENT 'From when it was due until it was sent'
)
AS SELECT
    q.evaluation_id AS evaluation_id, q.task_id AS task_id, q.attempt AS attempt, q.warmup AS warmup,
    q.query_index AS query_index, q.scheduled_ns AS scheduled_ns, q.issued_ns AS issued_ns,
    q.completed_ns AS completed_ns, q.items AS items,
    (q.completed_ns - q.scheduled_ns) / 1e6 AS latency_ms, (q.issued_ns - q.scheduled_ns) / 1e6 AS lateness_ms
FROM queries AS q FINAL
INNER JOIN mlms_attempts AS a
    ON q.evaluation_id = a.evaluation_id AND q.task_id = a.task_id AND q.attempt = a.attempt;

CREATE OR REPLACE VIEW mlms_spans
(
    evaluation_id String COMMENT 'The evaluation',
    task_id String COMMENT 'The task; empty for spans of the evaluation itself',
    attempt UInt32 COMMENT 'The final attempt',
    trace_id String COMMENT '32 hex digits, as in W3C trace context',
    span_id String COMMENT '16 hex digits',
    parent_id String COMMENT 'Empty for a root',
    level UInt8 COMMENT '1 application, 2 model, 3 framework, 4 ML library, 5 system library, 6 hardware',
    name LowCardinality(String) COMMENT 'What was done',
    start_ns Int64 COMMENT 'Nanoseconds since the epoch',
    duration_ns Int64 COMMENT 'How long it took',
    agent LowCardinality(String) COMMENT 'Who recorded it',
    process Int64 COMMENT 'Process id',
    thread Int64 COMMENT 'Thread id',
    stream Int64 COMMENT 'Device stream',
    simulated Bool COMMENT 'The time is simulated',
    attributes Map(LowCardinality(String), String) COMMENT 'Whatever else is known of it'
)
AS SELECT
    s.evaluation_id AS evaluation_id, s.task_id AS task_id, s.attempt AS attempt, s.trace_id AS trace_id,
    s.span_id AS span_id, s.parent_id AS parent_id, s.level AS level, s.name AS name, s.start_ns AS start_ns,
    s.duration_ns AS duration_ns, s.agent AS agent, s.process AS process, s.thread AS thread, s.stream AS stream,
    s.simulated AS simulated, s.attributes AS attributes
FROM spans AS s FINAL
LEFT JOIN mlms_attempts AS a ON s.evaluation_id = a.evaluation_id AND s.task_id = a.task_id
WHERE s.task_id = '' OR s.attempt = a.attempt;

CREATE OR REPLACE VIEW mlms_metrics
(
    evaluation_id String COMMENT 'The evaluation',
    task_id String COMMENT 'The task',
    attempt UInt32 COMMENT 'The final attempt',
    name LowCardinality(String) COMMENT 'What was sampled',
    time_ns Int64 COMMENT 'Nanoseconds since the epoch',
    value Float64 COMMENT 'The sample',
    unit LowCardinality(String) COMMENT 'Its unit'
)
AS SELECT
    m.evaluation_id AS evaluation_id, m.task_id AS task_id, m.attempt AS attempt, m.name AS name,
    m.time_ns AS time_ns, m.value AS value, m.unit AS unit
FROM metrics AS m FINAL
INNER JOIN mlms_attempts AS a
    ON m.evaluation_id = a.evaluation_id AND m.task_id = a.task_id AND m.attempt = a.attempt;

CREATE OR REPLACE VIEW mlms_systems
(
    system_id String COMMENT 'Digest of the description, host name left out',
    hostname String COMMENT 'Of the machine that was described last with this id',
    described DateTime64(6, 'UTC') COMMENT 'When it was last described',
    agent_id String COMMENT 'By whom',
    architecture LowCardinality(String) COMMENT 'amd64, arm64, ppc64le',
    operating_system String COMMENT 'Name and version',
    kernel String COMMENT 'Version',
    cpu_model String COMMENT 'As the processor calls itself; empty: not read',
    logical_cores Nullable(UInt32) COMMENT 'NULL: not read',
    memory_bytes Nullable(UInt64) COMMENT 'NULL: not read',
    gpus Array(String) COMMENT 'Their names',
    record String COMMENT 'SystemDescription as JSON: everything, and what could not be read'
)
AS SELECT
    s.system_id AS system_id, s.hostname AS hostname,
    toDateTime64(fromUnixTimestamp64Nano(s.time_ns, 'UTC'), 6, 'UTC') AS described,
    s.agent_id AS agent_id, s.architecture AS architecture, s.operating_system AS operating_system,
    s.kernel AS kernel, s.cpu_model AS cpu_model, s.logical_cores AS logical_cores,
    s.memory_bytes AS memory_bytes, s.gpus AS gpus, s.record AS record
FROM systems AS s FINAL
ORDER BY s.time_ns DESC
LIMIT 1 BY s.system_id;

CREATE OR REPLACE VIEW mlms_manifests
(
    kind LowCardinality(String) COMMENT 'model, framework or dataset',
    name String COMMENT 'Name of the artifact',
    version String COMMENT 'Semantic version',
    removed Bool COMMENT 'Taken out of the registry; what it evaluated stays',
    registered DateTime64(6, 'UTC') COMMENT 'When it was last registered',
    digest String COMMENT 'sha256 of the manifest last registered',
    user String COMMENT 'Who registered it',
    body String COMMENT 'The manifest last registered, as JSON'
)
AS SELECT
    m.kind AS kind, m.name AS name, m.version AS version,
    argMax(m.removed, m.time_ns) AS removed,
    toDateTime64(fromUnixTimestamp64Nano(maxIf(m.time_ns, NOT m.removed), 'UTC'), 6, 'UTC') AS registered,
    argMaxIf(m.digest, m.time_ns, NOT m.removed) AS digest,
    argMaxIf(m.user, m.time_ns, NOT m.removed) AS user,
    argMaxIf(m.body, m.time_ns, NOT m.removed) AS body
FROM manifests AS m
GROUP BY m.kind, m.name, m.version
HAVING countIf(NOT m.removed) > 0;
