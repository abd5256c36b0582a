"""OpenAI's completions API: continue texts or token ids, without a chat template."""
