"""Work queues: awaiting answers to requests, and workers."""
