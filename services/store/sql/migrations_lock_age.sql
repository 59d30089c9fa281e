SELECT toInt64(now() - since) FROM schema_migrations_lock
