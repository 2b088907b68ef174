"""The NumPy front end: maps, losses and controls on arrays. Its public names are those of :mod:`sparsegen`."""
