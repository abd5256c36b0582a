"""What `serve` takes, and what a served model's defaults are."""
