"""Faults, experiments and workloads that break a job on purpose."""
