"""Tests of the way from messages to token ids."""
