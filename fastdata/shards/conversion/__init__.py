"""From datasets of many kinds to shards: reading them, planning, writing, going on after a stop."""
