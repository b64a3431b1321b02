"""Measures and predicts training speed (`bench`, `plan`, `hours=`), and checks if this machine can train (`doctor`)."""
