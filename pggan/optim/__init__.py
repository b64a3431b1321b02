"""The state that training changes (networks, optimizers, EMA), and the sum of its gradients over all ranks."""
