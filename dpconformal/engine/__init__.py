"""How recorded rounds are run: the generic scan, or pointer loops that a learner offers as its kernel."""
