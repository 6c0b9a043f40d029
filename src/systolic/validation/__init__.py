"""Predicted times beside published ones: the error of each, constants fitted to half of them, checked on the others."""
