"""Engines over their lives, behind one queue: starts, deaths and blame, placement, coming and going."""
