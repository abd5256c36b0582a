"""A Mac, simulated on Linux: what our code sees of the system there, and the programs that it calls."""
