"""Where real images come from: the pyramid on disk, and what turns image files or drawn avatars into one."""
