"""The worker: a process of its own in which a model is opened and measured; and how an agent handles one."""
