"""The machine: what it is, how it does, and whose turn it is."""
