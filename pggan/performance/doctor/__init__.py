"""`pggan doctor`: what this machine has, and which parts of the program work on it."""
