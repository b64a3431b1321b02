"""The training state on disk, written atomically, and verified before a run resumes."""
