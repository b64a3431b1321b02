"""Where real images come from: datasets on disk, what makes them of image files or drawn avatars, and batches."""
