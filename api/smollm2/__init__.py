"""SmolLM2-135M-Instruct: the model that is served where the operator names none."""
