"""Manifests that come with the platform: YAML by kind, and in `assets/` the files that some of them name."""
