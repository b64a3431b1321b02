"""What every room may use: errors, the schedule, random numbers, files, devices."""
