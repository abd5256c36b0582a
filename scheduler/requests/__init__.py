"""An accepted request: its record, its states, its stream."""
