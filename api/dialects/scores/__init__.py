"""The APIs for rankings, as Jina, Cohere and vLLM have them, and for scores, as vLLM and SGLang do."""
