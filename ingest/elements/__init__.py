"""Parts of requests and answers that several operations share: endpoints, filters, topics, protection of pushes."""
