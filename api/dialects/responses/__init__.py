"""OpenAI's responses API: the server stores answers for a while."""
