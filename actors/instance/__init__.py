"""Model instances: one loaded copy of a model each, its batch slots, its responses, and the rate limiter."""
