"""The gateway's views of the logs, and its writers."""
