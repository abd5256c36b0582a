"""Many engines behind one queue: members, placement, deaths, coming and going."""
