"""Dashboards and rules that ask for what there is, and alerts that fire when they should."""
