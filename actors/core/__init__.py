"""The core: one object that both protocol edges call, and what it knows about requests in flight."""
