"""Measurements that back the claims in docs/; run as `python -m benchmarks.NAME`."""

import pggan as pggan  # before torch: what it sets for torch holds here, too
