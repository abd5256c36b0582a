"""OpenAI's responses API: answers that the server remembers for a while."""
