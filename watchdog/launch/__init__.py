"""The stub that stands in the job's place."""
