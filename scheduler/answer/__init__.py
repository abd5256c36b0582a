"""From token ids to the events a client reads: text and stop strings."""
