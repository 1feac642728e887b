"""Run collectors in parallel, in killable children, and keep the ledger."""
