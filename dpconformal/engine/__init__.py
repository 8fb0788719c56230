"""The ways through recorded rounds: the generic scan, and pointer loops that a learner offers as its kernel."""
