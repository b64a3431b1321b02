"""Train a progressive GAN: `python train.py key=value …`, the same as `pggan train`.  Try --help."""

import sys

from pggan.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
