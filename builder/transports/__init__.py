"""Ways to reach a machine: each starts the agent there and gives one pipe to it."""
