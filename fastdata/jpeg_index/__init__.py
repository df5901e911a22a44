"""Indexes of the rows in JPEGs: made once, kept beside images and shards, used to decode only a window."""
