"""Taking found examples out of a gradient until nothing is left."""
