"""One set of tests for every backend, on real model files that each format makes on the spot.

`format` says what a format must offer, `formats` lists them all, and beside it lies one module for each.
"""
