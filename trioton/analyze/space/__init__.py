"""Space of candidates: what `trioton analyze` may change in the configuration of a model, by what the model can do."""
