"""Real images: prepare datasets from image files or drawn avatars, store them on disk, and load training batches."""
