"""The OpenAI dialect: request schemas, chunks and objects."""
