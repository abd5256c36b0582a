"""An engine's death, and how its requests go on."""
