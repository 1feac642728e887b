"""Playbooks: Markdown for people, one per family of failures."""
