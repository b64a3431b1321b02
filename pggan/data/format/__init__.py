"""The dataset on disk: its index, its shards, and their bytes read and written."""
