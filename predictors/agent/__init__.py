"""The agent: takes tasks off the bus, has a worker do them, and tells what came of it."""
