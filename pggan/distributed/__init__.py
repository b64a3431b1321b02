"""Several ranks of one run: rendezvous, collectives, restarts; nothing about training."""
