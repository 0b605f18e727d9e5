"""A first project that runs as it stands: the files of `penstock init`."""
