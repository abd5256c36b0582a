"""Convert token ids to answer events: text, stop strings, reasoning, tool calls."""
