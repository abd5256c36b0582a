"""Tests of the conversion from messages to token ids."""
