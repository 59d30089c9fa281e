"""Services: scheduler, ingest, store and query API."""
