"""Properties of the machine: files, CPUs, storage, and installed optional packages."""
