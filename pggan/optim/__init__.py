"""The state that training changes (networks, optimizers, EMA), and the sum of gradients over all ranks."""
