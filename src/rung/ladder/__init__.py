"""The climb: rungs, candidates, prediction, verification, recipe."""
