"""Foundations for all rooms: errors, the schedule, random numbers, files, devices."""
