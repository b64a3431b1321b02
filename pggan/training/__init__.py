"""The training step: its inputs, its computation, the time it takes, and the trainer that takes steps."""
