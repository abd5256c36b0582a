"""Dashboards and rules that use existing metrics, and alerts that fire when they should."""
