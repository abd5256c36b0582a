"""Tests of mailboxes and their router."""
