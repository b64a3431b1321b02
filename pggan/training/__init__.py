"""Takes training steps, and estimates how long they take."""
