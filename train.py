"""Train a progressive GAN: `python train.py key=value …`, the same as `pggan train`.  Try --help."""

import sys

from pggan.cli.main import exit_process, main

if __name__ == "__main__":
    exit_process(main(["train", *sys.argv[1:]]))  # composes the configuration for `run` in pggan/run/train.py
