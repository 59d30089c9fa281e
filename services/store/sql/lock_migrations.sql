CREATE TABLE schema_migrations_lock ENGINE = MergeTree ORDER BY tuple() AS SELECT now() AS since
