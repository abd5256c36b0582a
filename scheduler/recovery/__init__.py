"""Engine crashes: detection, restart, and resuming the requests."""
