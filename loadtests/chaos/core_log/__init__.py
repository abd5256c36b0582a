"""What happened in the core of a chaos run's server, and what followed: written there, replayed by a test."""
