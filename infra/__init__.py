"""Configuration and migrations of what the platform runs on."""
