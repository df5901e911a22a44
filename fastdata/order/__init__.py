"""Order of the samples, and how to resume in the middle of an epoch."""
