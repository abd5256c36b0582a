"""In-process stand-ins that keep the contracts of the real parts."""
