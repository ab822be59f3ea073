"""Workloads, benchmarks and their reports; everything here targets loopback only and ends by itself."""
