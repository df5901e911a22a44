"""What the machine is: its files, CPUs and storage, and which optional packages are installed."""
