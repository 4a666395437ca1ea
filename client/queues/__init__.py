"""Both ends of a work queue: those who ask and await answers, and the servers."""
