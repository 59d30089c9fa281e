"""Golden messages: one file for each type and version that ever travelled."""
