"""How long tests wait for what has to come."""

PATIENCE = 120.0
"""Seconds. It only turns a hang into a failure: no machine is so busy that it takes as long, and a test that waits
twice still ends before the suite's own limit, which ends everything."""
