"""Assets and data sets: from the addresses in a manifest to verified files, and from files to labelled items."""
