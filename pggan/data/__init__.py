"""Real images: convert image files to a dataset on disk, and load training batches from the dataset."""
