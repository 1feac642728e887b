"""Small real training jobs that a fault can be injected into."""
