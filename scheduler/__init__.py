"""The scheduler: requests in, stream events out. It knows nothing of HTTP."""
