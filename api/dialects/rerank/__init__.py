"""The API for rankings, as Jina, Cohere and vLLM have it."""
