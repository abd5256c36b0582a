"""A model over several ranks, on a ring over loopback: each rank is a process."""
