"""Train a progressive GAN: `python train.py key=value …`, the same as `pggan train`.  Try --help."""

import sys

from pggan.cli.main import console

if __name__ == "__main__":
    console(["train", *sys.argv[1:]])  # composes the configuration for `run` in pggan/run/train.py
