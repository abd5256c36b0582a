"""From token ids to the events a client reads: text, stop strings, reasoning, tool calls."""
