"""LoRA adapters: rows with different ones in one batch."""
