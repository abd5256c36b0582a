"""Tests of mailboxes and the multiplexer."""
