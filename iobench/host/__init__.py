"""What one node's kernel reports and does: page cache, counters, control groups, tracing."""
