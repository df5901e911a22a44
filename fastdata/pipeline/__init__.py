"""From index batches to image batches: threads, jobs, decoding, collating.  Look here for a hang."""
