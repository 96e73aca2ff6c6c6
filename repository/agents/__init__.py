"""Repository agents: what looks at a model's folder, or gives another one, before the model is loaded."""
