"""Training of a small pair of models, and measurements of DDTREE on one GPU. See README.md beside this file."""
