"""What is read and typed in a terminal: progress lines and command-line arguments."""
