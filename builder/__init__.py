"""How an environment comes to be: every effect, each behind one small module."""
