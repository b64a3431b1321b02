"""Progressive growing of GANs: train, sample and explore face generators from 4x4 to 1024x1024."""

__version__ = "0.1.0"
