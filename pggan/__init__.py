"""Progressive growing of GANs: train, sample and explore face generators from 4x4 to 1024x1024."""

import os

__version__ = "0.1.0"

# What libraries read when torch is loaded, so it is set here, before, in every process; what the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait take cores that others need
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for large CPU tensors, much faster
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # a profile needs no log of its own
