"""One training step: its inputs, how it is calculated, what it costs, and the trainer that takes it."""
