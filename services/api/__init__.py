"""The HTTP API: JSON for everything historical and everything live, under /api/v1."""
