"""The agent: watches one launch from a session of its own."""
