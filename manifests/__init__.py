"""Manifests that come with the platform. Data: YAML in `models/`, `frameworks/`, `datasets/`, and their files in `assets/`."""
