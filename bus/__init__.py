"""NATS: the only package that talks to it, or builds a subject."""
