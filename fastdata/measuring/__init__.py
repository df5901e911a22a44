"""Fair measurements of loaders, for the commands, the doctor and benchmarks/."""
