"""Workloads, each made here from text that every Python has, so a clone alone is enough."""
