"""Foundations for all subpackages: errors, the schedule, random numbers, files, devices."""
