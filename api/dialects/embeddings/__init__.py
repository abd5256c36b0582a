"""OpenAI's API for embeddings, with vLLM's additions."""
