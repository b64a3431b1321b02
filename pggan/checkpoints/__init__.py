"""Checkpoints: the training state on disk, written atomically, and verified before a run resumes from it."""
