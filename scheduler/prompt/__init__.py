"""Convert messages to token ids: the model folder, its chat template, its tokenizer."""
