"""Tests of admission, the queue and the dispatcher."""
