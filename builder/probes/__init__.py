"""Programs that a built environment runs to show that it works; `kit.py` has what they share."""
