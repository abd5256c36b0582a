"""What speculation gives: measured on a model in this process, and simulated for a device of another kind."""
