"""The live side: launch, probe, progress, capture; and the evidence contract."""
