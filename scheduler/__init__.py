"""The scheduler: it accepts requests and returns stream events. It knows nothing of HTTP."""
