"""What happens on the machine that gets the environment: standard library only, CPython >= 3.10."""
