"""One engine of several ranks: rank 0 decides, the others replay its calls."""
