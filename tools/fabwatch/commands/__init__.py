"""The subcommands: each module composes, none holds logic."""
