"""The terminal: progress lines and command-line arguments."""
