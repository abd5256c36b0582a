"""Kits for installations without a network."""
