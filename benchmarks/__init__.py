"""Measurements that back the claims in docs/; run as `python -m benchmarks.NAME`."""
