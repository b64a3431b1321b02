"""Several ranks of one run: rendezvous, collectives, restarts, the watchdog; nothing about training."""
