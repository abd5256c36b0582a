"""OpenAI's completions API: texts and token ids to be continued, with no template."""
