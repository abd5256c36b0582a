"""A whole service that clients, engines and operators use in any order."""
