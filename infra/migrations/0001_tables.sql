-- One row per event of an entity's life, keyed so that the same event told twice is one row. The views put the
-- rows together. `non_replicated_deduplication_window` makes a retried insert (same token) change nothing.

CREATE TABLE IF NOT EXISTS evaluations
(
    evaluation_id String COMMENT 'Sorts by time of creation',
    stage LowCardinality(String) COMMENT 'Which event this row is: accepted, rejected, started (any task) or ended',
    time_ns Int64 COMMENT 'When it happened, nanoseconds since the epoch',
    status LowCardinality(String) COMMENT 'Status of the evaluation as far as this event knows',
    rank UInt8 MATERIALIZED transform(
        status, ['cancelled', 'failed', 'partial', 'completed', 'running', 'pending'], [13, 12, 11, 10, 2, 1], 0)
        COMMENT 'The row of an evaluation with the highest rank says how it stands',
    model LowCardinality(String),
    model_version LowCardinality(String),
    dataset LowCardinality(String),
    dataset_version LowCardinality(String),
    user LowCardinality(String),
    scenario LowCardinality(String),
    frameworks Array(LowCardinality(String)) COMMENT 'Of the planned tasks',
    devices Array(LowCardinality(String)) COMMENT 'Of the planned tasks',
    planned UInt32 COMMENT 'Tasks planned',
    completed UInt32,
    failed UInt32,
    cancelled UInt32,
    request String COMMENT 'EvaluationRequested as JSON',
    model_manifest String COMMENT 'ModelManifest as JSON, the one that ran',
    dataset_manifest String COMMENT 'DatasetManifest as JSON, the one that ran',
    near_misses String COMMENT 'JSON list of NearMiss',
    failure String COMMENT 'Failure as JSON; empty: none'
)
ENGINE = ReplacingMergeTree(time_ns)
ORDER BY (evaluation_id, stage)
SETTINGS index_granularity = 128, min_compress_block_size = 8192, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS tasks
(
    evaluation_id String,
    task_id String,
    attempt UInt32 COMMENT '0 for the plan',
    stage LowCardinality(String) COMMENT 'Which event this row is: planned, started or ended',
    time_ns Int64,
    status LowCardinality(String) COMMENT 'assigned, running, completed, failed or cancelled',
    rank Int64 MATERIALIZED multiIf(
        status = 'completed', 3000000000000 - toInt64(attempt),
        stage = 'ended', 2000000000000 + toInt64(attempt),
        stage = 'started', 1000000000000 + toInt64(attempt),
        0) COMMENT 'The row of a task with the highest rank says how it stands: first completed, else last ended, else last started',
    model LowCardinality(String),
    model_version LowCardinality(String),
    dataset LowCardinality(String),
    dataset_version LowCardinality(String),
    user LowCardinality(String),
    scenario LowCardinality(String),
    framework LowCardinality(String),
    framework_version LowCardinality(String),
    device LowCardinality(String),
    architecture LowCardinality(String),
    agent_id String,
    system_id String,
    batch_size UInt32,
    accuracy_top1 Nullable(Float64),
    accuracy_top1_low Nullable(Float64),
    accuracy_top1_high Nullable(Float64),
    accuracy_top5 Nullable(Float64),
    accuracy_top5_low Nullable(Float64),
    accuracy_top5_high Nullable(Float64),
    items_asked Nullable(UInt64),
    items_unreadable Nullable(UInt64),
    query_count Nullable(UInt64),
    mean_ms Nullable(Float64),
    trimmed_mean_ms Nullable(Float64),
    min_ms Nullable(Float64),
    max_ms Nullable(Float64),
    median_ms Nullable(Float64),
    median_low_ms Nullable(Float64),
    median_high_ms Nullable(Float64),
    p50_ms Nullable(Float64),
    p90_ms Nullable(Float64),
    p95_ms Nullable(Float64),
    p97_ms Nullable(Float64),
    p99_ms Nullable(Float64),
    p99_9_ms Nullable(Float64),
    throughput Nullable(Float64),
    throughput_low Nullable(Float64),
    throughput_high Nullable(Float64),
    process_start_ms Nullable(Float64),
    open_ms Nullable(Float64),
    first_predict_ms Nullable(Float64),
    cold_start_measured_here Nullable(Bool),
    preparation_items_per_s Nullable(Float64),
    valid Nullable(Bool),
    load_generator LowCardinality(String),
    evaluation_key String,
    pipeline_digest String,
    environment_digest String,
    figures String COMMENT 'Accuracy, latency, throughput, cold start and validity as JSON; empty: none',
    record String COMMENT 'TaskRecord as JSON; empty: none',
    failure String COMMENT 'Failure as JSON; empty: none'
)
ENGINE = ReplacingMergeTree(time_ns)
ORDER BY (evaluation_id, task_id, attempt, stage)
SETTINGS index_granularity = 64, min_compress_block_size = 8192, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS predictions
(
    evaluation_id String,
    task_id String,
    attempt UInt32,
    input_index Int64 COMMENT 'Position in the data set',
    input_id String,
    label String,
    classes Array(Int64) COMMENT 'Best first',
    scores Array(Float64),
    names Array(String),
    correct_top1 Bool,
    correct_top5 Bool,
    error String,
    output_digest String
)
ENGINE = ReplacingMergeTree
ORDER BY (evaluation_id, task_id, attempt, input_index)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS queries
(
    evaluation_id String,
    task_id String,
    attempt UInt32,
    warmup Bool,
    query_index Int64,
    scheduled_ns Int64 COMMENT 'Nanoseconds since the measurement''s first query was issued',
    issued_ns Int64,
    completed_ns Int64,
    items UInt32
)
ENGINE = ReplacingMergeTree
ORDER BY (evaluation_id, task_id, attempt, warmup, query_index)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS spans
(
    evaluation_id String,
    task_id String COMMENT 'Empty for spans of the evaluation itself',
    attempt UInt32,
    trace_id String,
    span_id String,
    parent_id String COMMENT 'Empty for a root',
    level UInt8,
    name LowCardinality(String),
    start_ns Int64 COMMENT 'Nanoseconds since the epoch',
    duration_ns Int64,
    agent LowCardinality(String),
    process Int64,
    thread Int64,
    stream Int64,
    simulated Bool,
    attributes Map(LowCardinality(String), String),
    INDEX by_trace trace_id TYPE bloom_filter GRANULARITY 4
)
ENGINE = ReplacingMergeTree
ORDER BY (evaluation_id, task_id, attempt, start_ns, span_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS metrics
(
    evaluation_id String,
    task_id String,
    attempt UInt32,
    name LowCardinality(String),
    time_ns Int64,
    value Float64,
    unit LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (evaluation_id, task_id, attempt, name, time_ns)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS systems
(
    system_id String,
    hostname String,
    time_ns Int64 COMMENT 'When it was last described',
    agent_id String COMMENT 'By whom',
    architecture LowCardinality(String),
    operating_system String,
    kernel String,
    cpu_model String,
    logical_cores Nullable(UInt32),
    memory_bytes Nullable(UInt64),
    gpus Array(String),
    record String COMMENT 'SystemDescription as JSON'
)
ENGINE = ReplacingMergeTree(time_ns)
ORDER BY (system_id, hostname)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS manifests
(
    kind LowCardinality(String) COMMENT 'model, framework or dataset',
    name String,
    version String,
    time_ns Int64 COMMENT 'When this was registered or removed',
    removed Bool,
    digest String,
    user String,
    body String COMMENT 'The manifest as JSON; empty for a removal'
)
ENGINE = ReplacingMergeTree
ORDER BY (kind, name, version, time_ns)
SETTINGS non_replicated_deduplication_window = 1000;
