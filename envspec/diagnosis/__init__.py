"""Why a venv does not work: an observation, and perhaps a traced run -> ranked causes, and what is not the cause."""
