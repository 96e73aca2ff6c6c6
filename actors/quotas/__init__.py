"""Quotas that several servers have in common: the exchange of what each has used, and the store in Redis."""
