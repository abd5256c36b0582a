"""Events out: streams, whole answers, errors."""
