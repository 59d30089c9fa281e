"""Benchmarks of the platform itself: ratios measured side by side in one run. `make bench` runs them all."""
