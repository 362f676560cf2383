"""What a change of a lock does: two locks, and what else is at hand, -> changes with what follows from them.

`review` puts it together; each other module knows one matter. `docs/review.md` is the page for users.
"""
