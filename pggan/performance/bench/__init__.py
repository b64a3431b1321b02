"""`pggan bench`: the training step beside a reference step, loading, and several ranks, measured."""
