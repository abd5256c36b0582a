"""One test for each place that a request can be in when it is cancelled."""
