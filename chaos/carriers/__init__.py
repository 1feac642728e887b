"""Helper processes that carry a fault; see chaos/helpers.py."""
