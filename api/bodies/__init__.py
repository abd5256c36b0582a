"""JSON in: bounds, fields, what nothing here knows, media."""
