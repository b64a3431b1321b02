"""Real images: make datasets of image files or of drawn avatars, keep them on disk, and load batches for training."""
