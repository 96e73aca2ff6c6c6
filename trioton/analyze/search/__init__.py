"""The search of `trioton analyze`: which candidate is measured next, at which rate and for how long. Pure.

Flow: `Space` (candidates with predictions of `queueing`) → [`plan`: rounds of `halving`, then `finals`] → `Trial` →
whoever measures → `Outcome` → `standings`
"""
