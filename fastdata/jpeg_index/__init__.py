"""Where a JPEG's rows begin: made once, kept beside images and shards, found again by whoever decodes a window."""
