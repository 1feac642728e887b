"""Cross-rank analysis: from observations of ranks to facts about the job."""
