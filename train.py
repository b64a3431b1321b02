"""Train a progressive GAN: `python train.py key=value …`, the same as `pggan train`.  Try --help."""

import sys

from pggan.cli.main import leave, main

if __name__ == "__main__":
    leave(main(["train", *sys.argv[1:]]))
