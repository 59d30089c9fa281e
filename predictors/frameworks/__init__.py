"""Frameworks behind the contract: one module each, and what several of them share."""
