"""Bindings."""
