"""Which sample comes when, and how to go on in the middle of an epoch."""
