"""The DataLoader: its arguments, the way its batches take, its iterators, what it says of itself."""
