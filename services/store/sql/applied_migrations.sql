SELECT number, any(digest) FROM schema_migrations GROUP BY number
