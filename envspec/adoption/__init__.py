"""A hand-made venv -> a spec, patch series and a report of what they explain. Values and pure functions; `builder.adopting` has the effects."""
