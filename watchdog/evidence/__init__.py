"""The evidence contract: typed observations, facts, ledger, bundle, parsers."""
