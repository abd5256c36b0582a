"""Drafts: tokens that a row may write next, which one model call verifies together."""
