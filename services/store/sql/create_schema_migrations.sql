CREATE TABLE IF NOT EXISTS schema_migrations
(
    number UInt32,
    name String,
    digest String COMMENT 'sha256 of the file',
    applied DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY number
