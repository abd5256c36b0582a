"""The OpenAI dialect: request shapes in, chunks and objects out."""
