"""A loaded model version: its pool of supervised instances, its submissions, and models that only split traffic."""
