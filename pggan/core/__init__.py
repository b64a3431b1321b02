"""Foundations for all subpackages: errors, the training schedule, random numbers, files, devices."""
