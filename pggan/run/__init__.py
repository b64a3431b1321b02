"""Sets up and runs training, with reports and checkpoints; has the commands `pggan inspect`, `timelapse`, `monitor`."""
