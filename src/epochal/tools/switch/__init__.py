"""Switches from one version of a query to another: clones, comparisons of outputs, and cuts."""
