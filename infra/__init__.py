"""Configuration, migrations and the scripts that make what is shipped."""
