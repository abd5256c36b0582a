"""How the embedded model was made: tokenizer, data, training, evaluation. Nothing that serves imports it."""
